/**
 * The bench's Kafka: a broker of its own from the jars that the tests use, with the JVM that Kafka's scripts give a broker. It
 * can be asked what went through its topics.
 */
import { join } from 'node:path'
import { run } from '../test/services/java.ts'
import { startKafka, type TestBroker } from '../test/services/kafka.ts'
import { freePort } from './free-port.ts'

const JVM = ['-Xmx1g', '-Xms1g', '-XX:+UseG1GC', '-XX:MaxGCPauseMillis=20', '-Dorg.slf4j.simpleLogger.defaultLogLevel=warn']
const WITHOUT = "the broker's own figures are read by Java"

export type BenchBroker = TestBroker &
  Readonly<{
    /** @param prefix begins the names of the topics. @returns bytes of records as they lie in the log, so compressed */
    traffic(prefix: string): Readonly<{ written: number; fetched: number }>
  }>

/** @returns the broker, or why there is none on this machine */
export async function startBroker(): Promise<BenchBroker | string> {
  try {
    const port = await freePort()
    const broker = await startKafka({ jvm: [...JVM, ...monitoringOn(port)] })
    const traffic = (prefix: string) => {
      const said = run('java', [join(import.meta.dirname, 'kafka', 'TopicBytes.java'), String(port), prefix], WITHOUT)
      const [, written, fetched] = /^(\d+) (\d+)$/m.exec(said) ?? []
      if (written === undefined || fetched === undefined) throw new Error(`the broker's figures are not understood: ${said}`)
      return { written: Number(written), fetched: Number(fetched) }
    }
    return Object.assign(broker, { traffic })
  } catch (error) {
    return (error as Error).message
  }
}

/** On this machine alone, so without a login. */
const monitoringOn = (port: number): string[] => [
  '-Djava.rmi.server.hostname=127.0.0.1',
  ...['host=127.0.0.1', `port=${port}`, `rmi.port=${port}`, 'authenticate=false', 'ssl=false'].map(
    (setting) => `-Dcom.sun.management.jmxremote.${setting}`,
  ),
]
