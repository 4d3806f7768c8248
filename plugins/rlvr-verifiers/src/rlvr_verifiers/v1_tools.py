"""Tools of a v1 task, called in this process.

The library runs each toolset as an MCP server in a process of its own, for each rollout: seconds of imports for an
episode. The same object serves its tools here, with the same names, schemas and errors, and its `state` is that of the
rollout. A toolset that names a `url` is somebody else's server and is called there.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import Any, ClassVar

from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, TextContent
from pydantic import TypeAdapter
from verifiers.v1.harnesses.utils.mcp import MCPConnection, mcp_content_to_chat_content
from verifiers.v1.mcp import Toolset
from verifiers.v1.task import Task
from verifiers.v1.trace import Trace

from rlvr.errors import UserError
from rlvr.types import ToolSchema

TRACE: ContextVar[Trace] = ContextVar("rlvr_trace")
"""The rollout whose state a tool reads and writes."""

Called = Callable[[dict[str, Any]], Awaitable[CallToolResult]]


class Server(MCPServer):
    """A server of a toolset. Rollouts have toolsets of their own, but their schemas are made once: half of the time."""

    known: ClassVar[dict[Any, Any]] = {}

    def __init__(self, toolset: Toolset[Any, Any]) -> None:
        super().__init__(toolset.server_name or type(toolset).__name__)
        self._kind = (type(toolset), toolset.config.model_dump_json())

    def add_tool(self, fn: Callable[..., Any], name: str | None = None, **more: Any) -> None:
        name = name or fn.__name__
        known, found = self.known, self._tool_manager._tools
        key = (*self._kind, name, fn.__doc__)
        if key not in known:
            super().add_tool(fn, name=name, **more)
            known[key] = found[name]
        found[name] = known[key].model_copy(update={"fn": fn})


class LocalToolset:
    """A toolset of the library, set up if it is called, served by this process."""

    def __init__(self, toolset: Any) -> None:
        self.toolset, self._mcp = toolset, Server(toolset)
        toolset._pull_state, toolset._push_state = self._pull_state, self._push_state
        toolset.register(self._mcp)
        self.offered = [
            (tool.name, schema(toolset.server_name, tool.name, tool.description, tool.parameters))
            for tool in self._mcp._tool_manager.list_tools()
        ]

    async def call(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        try:
            result: Any = await self._mcp.call_tool(name, arguments)
        except Exception as error:  # what a server answers then
            if isinstance(error.__cause__, UserError):
                raise error.__cause__ from error
            return CallToolResult(content=[TextContent(type="text", text=str(error))], is_error=True)
        return result

    async def _pull_state(self) -> Any:
        """A copy of the rollout's state, as a server in another process would get."""
        state = TRACE.get().state
        return self.toolset._state_adapter.validate_json(TypeAdapter(type(state)).dump_json(state))

    async def _push_state(self, before: bytes) -> None:
        after = self.toolset._state_adapter.dump_json(self.toolset.state)
        if after != before:
            trace = TRACE.get()
            trace.state = TypeAdapter(type(trace.state)).validate_json(after)


class Tools:
    """The tools of one rollout by the names that the model uses."""

    def __init__(self) -> None:
        self.schemas: list[ToolSchema] = []
        self.num_errors = 0
        self._tools: dict[str, Called] = {}

    def add(self, offered: Sequence[tuple[str, ToolSchema]], call: Callable[..., Awaitable[CallToolResult]]) -> None:
        """ValueError for two tools of one name."""
        for name, found in offered:
            full = found["function"]["name"]
            if full in self._tools:
                raise ValueError(f"two tools are called {full!r}")
            self.schemas.append(found)
            self._tools[full] = lambda arguments, name=name: call(name, arguments)

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """What the model is told: text, or parts of content."""
        tool = self._tools.get(name)
        if tool is None:
            self.num_errors += 1
            return f"error: unknown tool {name!r}"
        result = await tool(arguments)
        self.num_errors += bool(result.is_error)
        return mcp_content_to_chat_content(result.content)


def schema(prefix: str, name: str, description: str | None, parameters: Mapping[str, Any]) -> ToolSchema:
    """As the library's own agent program writes it."""
    full = f"{prefix}_{name}" if prefix else name
    function = {"name": full, "description": description or "", "parameters": dict(parameters)}
    return {"type": "function", "function": function}


async def open_tools(tools: Tools, shared: Sequence[Any], task: Task[Any, Any, Any], stack: AsyncExitStack) -> None:
    """Open the toolsets of the taskset, already set up, and of the task, which are closed with the stack."""
    for local in shared:
        await _add(tools, local, stack)
    for toolset in task.toolsets(task.config):
        if not toolset.config.url:
            stack.push_async_callback(toolset._exit_stack.aclose)
            await toolset.setup()
            await toolset.setup_task(task.data)
        await _add(tools, localized(toolset), stack)


def localized(toolset: Any) -> Any:
    """The toolset in this process, unless it is a server somewhere."""
    return toolset if toolset.config.url else LocalToolset(toolset)


async def _add(tools: Tools, local: Any, stack: AsyncExitStack) -> None:
    if isinstance(local, LocalToolset):
        tools.add(local.offered, local.call)
        return
    server = MCPConnection({"url": local.config.url})
    stack.push_async_callback(server.aclose)
    found = await server.run(lambda client: client.list_tools())
    offered = [
        (tool.name, schema(local.server_name, tool.name, tool.description, tool.input_schema)) for tool in found.tools
    ]

    async def call(name: str, arguments: dict[str, Any]) -> CallToolResult:
        return await server.run(lambda client: client.call_tool(name, arguments))

    tools.add(offered, call)
