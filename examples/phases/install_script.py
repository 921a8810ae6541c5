# Seed 003, "Asynchronous Example": the command is started once, and then looked at, call by call.
import subprocess


def _ssh(node, *command):
    return subprocess.check_output(("ssh", "user@" + node.getAsString("Name")) + command, universal_newlines=True).strip()


def _call_remote_command(node):
    return _ssh(node, "start-install")


def _check_command(dirname, node):
    """Whether it has ended, and its error if it has failed."""
    status = _ssh(node, "cat", dirname + "/status")
    if status == "":
        return False, None
    return True, None if status == "ok" else status


def handle(handler):
    for node in handler.getResources():
        phase_data = handler.getResourcePhaseData(node)

        if not phase_data.isDefined("Directory"):
            # run the command and get the temporary directory with its output
            dirname = _call_remote_command(node)
            phase_data.setString("Directory", dirname)
        else:
            dirname = phase_data.getAsString("Directory")
            # ssh to the machine and determine if done
            completed, error = _check_command(dirname, node)
            if completed:
                if error is not None:
                    handler.setFailed(node, error)
                else:
                    handler.setCompleted(node)
            else:
                # still not done, so CycleCloud will call again later for this resource
                pass
