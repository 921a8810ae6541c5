import acme


def handle(handler):
    for node in handler.getResources():
        volume_id = acme.create_volume(node.getAsString("Credentials"), {"gigabytes": node.getAsInteger("DiskSize", 10)})
        node.setString("VolumeId", volume_id)
        handler.setCompleted(node)
