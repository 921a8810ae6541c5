# A state listener: seed 003, "State Listeners".
import os


def onStateTransition(event):
    with open(os.environ["TRANSITIONS"], "a") as log:
        for resource in event.getResources():
            log.write("%s %s %s %s\n" % (event.getType(), event.getState(), event.getClusterName(), resource.getAsString("Name")))
