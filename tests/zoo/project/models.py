"""A chat model that answers by a rule, so that every run of an agent is the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable

Rule = Callable[[Sequence[BaseMessage]], AIMessage]


def call(name: str, number: int = 1, **arguments: Any) -> AIMessage:
    """An answer that calls a tool."""
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call-{name}-{number}"}])


def turns(*answers: AIMessage | str) -> Rule:
    """Answer in this order: the first to a person, the next after each result of a tool; then the last."""

    def rule(messages: Sequence[BaseMessage]) -> AIMessage:
        last = max((at for at, each in enumerate(messages) if isinstance(each, HumanMessage)), default=0)
        done = sum(isinstance(each, ToolMessage) for each in messages[last:])
        answer = answers[min(done, len(answers) - 1)]
        return AIMessage(answer) if isinstance(answer, str) else answer

    return rule


class Scripted(BaseChatModel):
    """Answers by a rule, word by word, and counts words as tokens."""

    rule: Rule
    profile: Any = None

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        answer = self.rule(messages).model_copy(update={"usage_metadata": usage(self.rule(messages))})
        return ChatResult(generations=[ChatGeneration(message=answer)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        answer = self.rule(messages)
        words = str(answer.content).split()
        for number, word in enumerate(words):
            chunk = AIMessageChunk(content=word if number == 0 else f" {word}")
            yield ChatGenerationChunk(message=chunk)
        last = AIMessageChunk(content="", tool_calls=answer.tool_calls, usage_metadata=usage(answer))
        yield ChatGenerationChunk(message=last)

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self


def usage(answer: AIMessage) -> Any:
    """The tokens of an answer; each question costs ten."""
    count = len(str(answer.content).split())
    return {"input_tokens": 10, "output_tokens": count, "total_tokens": 10 + count}
