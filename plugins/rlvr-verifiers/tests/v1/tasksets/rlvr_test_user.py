"""A taskset whose environment is the user that the agent talks to."""

from collections.abc import Iterable

from rlvr_test_taskset import Config, Data, TasksetConfig, Tools, vf


class TalkConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class Talk(vf.Env[TalkConfig]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            heard = 1
            while not segment.terminated and heard < 3:
                segment = await interaction.turn(f"heard {segment.last_reply}")
                heard += not segment.terminated
        interaction.trace.record_reward("heard", float(heard), 1.0)


class TalkTaskset(vf.Taskset[Tools, TasksetConfig]):
    def load(self) -> Iterable[Tools]:
        for number in range(self.config.num):
            yield Tools(Data(prompt=f"say {number}", answer=str(number)), Config())


__all__ = ["Talk", "TalkTaskset"]
