"""sos (4.0 and newer): the node's versions and settings, and the last report. It runs no test.

Link it into sos's plug-ins: ln -s /opt/gpuipc-doctor/sos/gpuipc_doctor.py \
    "$(python3 -c 'import sos.report.plugins as p; print(p.__path__[0])')"
"""

from sos.report.plugins import DebianPlugin, Plugin, RedHatPlugin, UbuntuPlugin


class GpuipcDoctor(Plugin, RedHatPlugin, DebianPlugin, UbuntuPlugin):
    short_desc = "GPU IPC and GPU-aware MPI, by gpuipc-doctor"
    plugin_name = "gpuipc_doctor"
    profiles = ("hardware", "hpc")
    packages = ("gpuipc-doctor",)
    commands = ("gpuipc-doctor",)

    def setup(self):
        self.add_copy_spec(
            ["/etc/gpuipc-doctor", "/var/lib/gpuipc-doctor/report.json", "/var/log/gpuipc-doctor.jsonl*"]
        )
        self.add_cmd_output(
            [
                "gpuipc-doctor --version",
                "gpuipc-doctor inventory",
                "gpuipc-doctor inventory --json",
                "gpuipc-doctor config show --origin",
            ]
        )
