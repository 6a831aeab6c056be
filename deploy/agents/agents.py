"""An agent for the worker of compose.yaml. Replace it with your own."""

from perdure import Agents

agents = Agents()


@agents.agent("greet")
async def greet(ctx, input):
    """Greet somebody by name."""
    return {"greeting": f"Hello, {input['name']}!"}
