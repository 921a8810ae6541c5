# The first plugin of seed 003, "Phase Plugins".
import acme


def _convert_node_to_instance(node):
    return {"name": node.getAsString("Name"), "type": node.getAsString("MachineType"), "volume": node.getAsString("VolumeId")}


def _lookup_credentials(name):
    return name


def handle(handler):
  for node in handler.getResources():
    # convert node settings to the format that acme uses
    instance_params = _convert_node_to_instance(node)
    # look up the keys for this node
    creds = _lookup_credentials(node.getAsString("Credentials"))
    # create the instance
    instance_id = acme.create_instance(creds, instance_params)
    # update the node with the instance id
    node.setString("InstanceId", instance_id)
    handler.setCompleted(node)
