import { Link, useLocation } from "wouter";
import { api } from "../api/client";
import { useAction } from "../api/queries";
import { useFilter } from "../app/filters";
import { linkTo } from "../app/screens";
import { useMay } from "../app/session";
import { type Asked, Composer, useAssistants } from "../components/Composer";
import { Empty, Head, Loading } from "../components/basics";

const SNIPPET = `# agents.py, served by: perdure dev --agents ./agents.py:agents
from perdure import Agents

agents = Agents()

@agents.agent("greet")
async def greet(ctx, input):
    return {"greeting": f"Hello, {input['name']}!"}`;

export default function Chat() {
  const assistants = useAssistants();
  const [chosen, choose] = useFilter("assistant");
  const [, navigate] = useLocation();
  const mayWrite = useMay("write");
  const begin = useAction(
    async (asked: Asked) => {
      const { thread_id } = await api.post("/api/v1/threads", { body: {} });
      await api.post("/api/v1/runs", { body: { ...asked, thread_id } });
      return thread_id;
    },
    () => null,
  );
  if (!assistants) return <Loading />;
  const assistant_id = assistants.some((each) => each.assistant_id === chosen) ? chosen : (assistants[0]?.assistant_id ?? "");
  const assistant = assistants.find((each) => each.assistant_id === assistant_id);
  return (
    <>
      <Head title="Chat"><Link href="/threads" className="link">All threads</Link></Head>
      {assistants.length === 0 ? <Empty title="No assistants yet" text="An assistant is an agent that a worker has. This makes the first:" snippet={SNIPPET} />
        : !mayWrite ? <Empty title="This token only reads" text="A token with the scope write talks to assistants." />
        : (
          <div className="body new-chat">
            <div className="new-chat-title">
              <h2>Talk to {assistant?.name}</h2>
              <div className="quiet">{assistant?.description ?? "A new thread begins with your first message."}</div>
            </div>
            <Composer
              assistants={assistants} assistant_id={assistant_id} onAssistant={choose} isBusy={begin.isPending}
              onSend={(asked) => begin.mutate(asked, { onSuccess: (thread_id) => navigate(linkTo("thread", thread_id) ?? "/") })}
            />
          </div>
        )}
    </>
  );
}
