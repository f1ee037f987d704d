import { conforms } from './conformance.ts'
import { kafkaHome } from './kafka-home.ts'

conforms('kafka', () => kafkaHome())
