"""A seat that runs a graph of LangGraph: the framework keeps its own loop, Crewlet its mail, term and tools.

The model is scripted, so that the example runs offline; put a chat model in its place. The graph is built once and
serves every turn of the worker.
"""

from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph

from crewlet.agent import Outcome, Turn


class State(TypedDict, total=False):
    """What the nodes of the graph hand on."""

    question: str
    draft: str
    answer: str


async def draft(state: State) -> State:
    return {"draft": " ".join(reversed(state["question"].split()))}


async def review(state: State) -> State:
    return {"answer": state["draft"].capitalize()}


def _graph() -> Any:
    graph = StateGraph(State)
    graph.add_node("drafting", draft)
    graph.add_node("reviewing", review)
    graph.add_edge(START, "drafting")
    graph.add_edge("drafting", "reviewing")
    graph.add_edge("reviewing", END)
    return graph.compile()


GRAPH = _graph()


async def run(turn: Turn) -> Outcome:
    mail = turn.mail[-1]
    answer = ""
    async for step in GRAPH.astream({"question": mail.body}, stream_mode="updates"):
        for node, change in step.items():
            turn.progress(node)
            turn.usage("scripted", len(mail.body.split()), len(change))
            answer = change.get("answer", answer)
    if mail.writer is not None:
        await turn.send(mail.writer, answer)
    return Outcome("delivered", answer)
