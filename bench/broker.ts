/** The bench's Kafka: a broker of its own from the jars that the tests use, with the JVM that Kafka's scripts give a broker. */
import { startKafka, type TestBroker } from '../test/services/kafka.ts'

const JVM = ['-Xmx1g', '-Xms1g', '-XX:+UseG1GC', '-XX:MaxGCPauseMillis=20', '-Dorg.slf4j.simpleLogger.defaultLogLevel=warn']

/** @returns the broker, or why there is none on this machine */
export async function startBroker(): Promise<TestBroker | string> {
  try {
    return await startKafka({ jvm: JVM })
  } catch (error) {
    return (error as Error).message
  }
}
