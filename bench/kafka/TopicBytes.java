import java.util.Set;
import javax.management.MBeanServerConnection;
import javax.management.ObjectName;
import javax.management.remote.JMXConnector;
import javax.management.remote.JMXConnectorFactory;
import javax.management.remote.JMXServiceURL;

/**
 * Asks a broker how many bytes of records it has been given, and how many consumers have fetched, in topics whose names begin
 * so, and prints the two. Arguments: the broker's JMX port on this machine, and the beginning.
 */
class TopicBytes {
  public static void main(String[] args) throws Exception {
    JMXServiceURL broker = new JMXServiceURL("service:jmx:rmi:///jndi/rmi://127.0.0.1:" + args[0] + "/jmxrmi");
    try (JMXConnector connector = JMXConnectorFactory.connect(broker)) {
      MBeanServerConnection beans = connector.getMBeanServerConnection();
      System.out.println(sum(beans, "BytesInPerSec", args[1]) + " " + sum(beans, "BytesOutPerSec", args[1]));
    }
  }

  private static long sum(MBeanServerConnection beans, String meter, String prefix) throws Exception {
    ObjectName topics = new ObjectName("kafka.server:type=BrokerTopicMetrics,name=" + meter + ",topic=" + prefix + "*");
    Set<ObjectName> names = beans.queryNames(topics, null);
    long bytes = 0;
    for (ObjectName name : names) bytes += (Long) beans.getAttribute(name, "Count");
    return bytes;
  }
}
