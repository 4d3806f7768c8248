"""A taskset with an environment of its own."""

from rlvr_test_taskset import TestTaskset, vf


class TwoAgentsConfig(vf.EnvConfig):
    first: vf.AgentConfig = vf.AgentConfig()
    second: vf.AgentConfig = vf.AgentConfig()


class TwoAgents(vf.Env[TwoAgentsConfig]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await agents.first.run(task)
        await agents.second.run(task)


__all__ = ["TestTaskset", "TwoAgents"]
