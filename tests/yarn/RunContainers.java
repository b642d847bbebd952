import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.security.token.Token;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.client.ClientRMProxy;
import org.apache.hadoop.yarn.client.api.AMRMClient;
import org.apache.hadoop.yarn.client.api.AMRMClient.ContainerRequest;
import org.apache.hadoop.yarn.client.api.NMClient;
import org.apache.hadoop.yarn.client.api.YarnClient;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.exceptions.InvalidResourceRequestException;
import org.apache.hadoop.yarn.security.AMRMTokenIdentifier;

/**
 * Runs shell scripts in real YARN containers: an application whose master is this process (an
 * unmanaged AM), told what to do by JSON lines on standard input, telling what happened by JSON
 * lines on standard output.
 *
 * <pre>
 * java -cp JARS/*:CONF RunContainers.java
 *
 * in   {"ask": 1, "count": 2, "script": "/path", "memory": 256, "vcores": 1, "gpus": 1,
 *       "environment": {}, "label": null}     asks for containers and starts the script in each;
 *                                             asks are numbered from 1
 *      {"stop": "container_…"}                has its NodeManager stop a container
 *      end of input                           stops all containers and ends the application
 *
 * out  {"event": "registered", "application": "application_…"}
 *      {"event": "started", "ask": 1, "container": "container_…"}
 *      {"event": "finished", "container": "container_…", "exit": 0, "diagnostics": ""}
 *      {"event": "refused", "diagnostics": "…"}
 *                                             an ask for more than any node has; it ends the
 *                                             application, as AMRMClient would ask for ever
 * </pre>
 *
 * RM REST can't do this: its submissions carry no resource but memory and vcores.
 */
public class RunContainers {
  private static final ObjectMapper JSON = new ObjectMapper();

  private final YarnConfiguration conf = new YarnConfiguration();
  private final YarnClient yarn = YarnClient.createYarnClient();
  private final AMRMClient<ContainerRequest> rm = AMRMClient.createAMRMClient();
  private final NMClient nm = NMClient.createNMClient();
  /** Lines of standard input that wait to be done. */
  private final Queue<JsonNode> input = new ConcurrentLinkedQueue<>();

  private volatile boolean inputEnded;
  /** By number, which is the priority of its requests: that is how a container finds its ask. */
  private final Map<Integer, JsonNode> asks = new HashMap<>();

  private final Map<Integer, Queue<ContainerRequest>> requests = new HashMap<>();
  private final Map<ContainerId, NodeId> running = new HashMap<>();

  public static void main(String[] arguments) throws Exception {
    new RunContainers().run();
    // Hadoop's clients leave threads behind.
    System.exit(0);
  }

  private void run() throws Exception {
    ApplicationId application = register();
    print("registered", Map.of("application", application.toString()));
    Thread reader = new Thread(this::read, "standard input");
    reader.setDaemon(true);
    reader.start();
    while (!inputEnded || !input.isEmpty()) {
      for (JsonNode line; (line = input.poll()) != null; ) {
        if (line.has("ask")) {
          ask(line);
        } else {
          ContainerId container = ContainerId.fromString(line.get("stop").asText());
          nm.stopContainer(container, running.get(container));
        }
      }
      allocate();
      Thread.sleep(50);
    }
    rm.unregisterApplicationMaster(FinalApplicationStatus.SUCCEEDED, "", "");
    nm.stop();
    rm.stop();
    yarn.stop();
  }

  /** Submits the application and becomes its master. */
  private ApplicationId register() throws Exception {
    yarn.init(conf);
    yarn.start();
    ApplicationSubmissionContext submission =
        yarn.createApplication().getApplicationSubmissionContext();
    submission.setApplicationName("containers");
    submission.setUnmanagedAM(true);
    submission.setMaxAppAttempts(1);
    submission.setResource(Resource.newInstance(128, 1));
    submission.setAMContainerSpec(
        ContainerLaunchContext.newInstance(
            new HashMap<>(), new HashMap<>(), new ArrayList<>(), null, null, null));
    yarn.submitApplication(submission);
    ApplicationId id = submission.getApplicationId();
    Token<AMRMTokenIdentifier> token;
    while ((token = yarn.getAMRMToken(id)) == null) {
      Thread.sleep(50);
    }
    token.setService(ClientRMProxy.getAMRMTokenService(conf));
    UserGroupInformation.getCurrentUser().addToken(token);
    rm.init(conf);
    rm.start();
    nm.init(conf);
    nm.start();
    nm.cleanupRunningContainersOnStop(true);
    rm.registerApplicationMaster("localhost", 0, "");
    return id;
  }

  private void read() {
    try (BufferedReader lines = new BufferedReader(new InputStreamReader(System.in))) {
      for (String line; (line = lines.readLine()) != null; ) {
        input.add(JSON.readTree(line));
      }
    } catch (Exception e) {
      e.printStackTrace();
    } finally {
      inputEnded = true;
    }
  }

  private void ask(JsonNode ask) throws Exception {
    int number = ask.get("ask").asInt();
    Resource resource =
        Resource.newInstance(ask.get("memory").asInt(), ask.get("vcores").asInt());
    if (ask.get("gpus").asInt() > 0) {
      resource.setResourceValue("yarn.io/gpu", ask.get("gpus").asInt());
    }
    asks.put(number, ask);
    String label = ask.hasNonNull("label") ? ask.get("label").asText() : null;
    Queue<ContainerRequest> open = new ArrayDeque<>();
    requests.put(number, open);
    for (int i = 0; i < ask.get("count").asInt(); i++) {
      ContainerRequest request =
          new ContainerRequest(
              resource, null, null, Priority.newInstance(number), true, label);
      rm.addContainerRequest(request);
      open.add(request);
    }
  }

  /** A heartbeat to the ResourceManager, and what comes of it. */
  private void allocate() throws Exception {
    AllocateResponse response;
    try {
      response = rm.allocate(0);
    } catch (InvalidResourceRequestException e) {
      print("refused", Map.of("diagnostics", e.getMessage().lines().findFirst().orElse("")));
      inputEnded = true;
      return;
    }
    for (Container container : response.getAllocatedContainers()) {
      int number = container.getPriority().getPriority();
      ContainerRequest request = requests.getOrDefault(number, new ArrayDeque<>()).poll();
      if (request == null) {
        // The ResourceManager may answer a heartbeat that was on its way with one too many.
        rm.releaseAssignedContainer(container.getId());
        continue;
      }
      rm.removeContainerRequest(request);
      running.put(container.getId(), container.getNodeId());
      nm.startContainer(container, launch(asks.get(number)));
      print("started", Map.of("ask", number, "container", container.getId().toString()));
    }
    for (ContainerStatus status : response.getCompletedContainersStatuses()) {
      if (running.remove(status.getContainerId()) != null) {
        Map<String, Object> event = new LinkedHashMap<>();
        event.put("container", status.getContainerId().toString());
        event.put("exit", status.getExitStatus());
        event.put("diagnostics", status.getDiagnostics());
        print("finished", event);
      }
    }
  }

  private static ContainerLaunchContext launch(JsonNode ask) {
    Map<String, String> environment = new HashMap<>();
    ask.get("environment")
        .fields()
        .forEachRemaining(field -> environment.put(field.getKey(), field.getValue().asText()));
    // A file, since YARN puts the command between double quotes.
    String command =
        "exec bash " + ask.get("script").asText() + " 1><LOG_DIR>/stdout 2><LOG_DIR>/stderr";
    return ContainerLaunchContext.newInstance(
        new HashMap<>(), environment, List.of(command), null, null, null);
  }

  private static void print(String event, Map<String, ?> rest) throws Exception {
    Map<String, Object> line = new LinkedHashMap<>();
    line.put("event", event);
    line.putAll(rest);
    System.out.println(JSON.writeValueAsString(line));
  }
}
