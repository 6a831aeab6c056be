"""Three versions of a prompt, each tried on the same questions; the reward says which one to keep."""

import asyncio
from statistics import mean

from perdure import AttemptedRollout, InMemoryLightningStore, LightningStore, PromptTemplate, Span

TEMPLATES = (
    "{question}",
    "Answer briefly. {question}",
    "Think step by step, then answer briefly. {question}",
)
QUESTIONS = ("Why is the sky blue?", "What is a monad?", "Who was Hypatia?")


def reward_of(prompt: str) -> float:
    """Stands in for a model and a judge: this one likes prompts that ask for thought."""
    return ("step by step" in prompt) * 0.6 + ("briefly" in prompt) * 0.3


async def run_agent(store: LightningStore, claimed: AttemptedRollout) -> None:
    """Take the prompt that the rollout is bound to, use it, and leave the reward in a span."""
    assert claimed.resources_id is not None
    bundle = await store.get_resources_by_id(claimed.resources_id)
    assert bundle is not None
    template = bundle.resources["prompt"]
    assert isinstance(template, PromptTemplate)
    reward = reward_of(template.format(question=claimed.input["question"]))
    await store.add_span(
        Span.from_attributes(
            rollout_id=claimed.rollout_id,
            attempt_id=claimed.attempt.attempt_id,
            name="agentlightning.reward",
            attributes={"agentlightning.reward.0.value": reward},
        )
    )
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")


async def reward_in(store: LightningStore, rollout_id: str) -> float:
    [span] = await store.query_spans(rollout_id, name="agentlightning.reward")
    value = span.attributes["agentlightning.reward.0.value"]
    assert isinstance(value, float)
    return value


async def try_template(store: LightningStore, template: str) -> float:
    """Offer a template to the agents, and give the mean of their rewards."""
    await store.add_resources({"prompt": PromptTemplate(template=template, engine="f-string")})
    queued = [await store.enqueue_rollout({"question": question}, mode="train") for question in QUESTIONS]
    while (claimed := await store.dequeue_rollout("runner-1")) is not None:
        await run_agent(store, claimed)
    return mean([await reward_in(store, rollout.rollout_id) for rollout in queued])


async def main() -> None:
    async with InMemoryLightningStore() as store:
        rewards = {template: await try_template(store, template) for template in TEMPLATES}
        for template, reward in rewards.items():
            print(f"{reward:.2f}  {template}")
        print("keep:", max(rewards, key=rewards.__getitem__))


asyncio.run(main())
