import java.util.Optional;
import org.apache.spark.SparkConf;
import org.apache.spark.api.resource.ResourceDiscoveryPlugin;
import org.apache.spark.resource.ResourceInformation;
import org.apache.spark.resource.ResourceRequest;

/**
 * A discovery plugin that a job brings along, as some do that take a GPU by trying which is free:
 * it takes the GPU of the setting {@code spark.own.address} and asks nobody.
 */
public class OwnDiscovery implements ResourceDiscoveryPlugin {
  @Override
  public Optional<ResourceInformation> discoverResource(ResourceRequest request, SparkConf conf) {
    String[] addresses = {conf.get("spark.own.address")};
    return Optional.of(new ResourceInformation(request.id().resourceName(), addresses));
  }
}
