import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { MantineProvider } from "@mantine/core";
import { Component, type ReactNode, Suspense, useEffect } from "react";
import { Route, Router, Switch } from "wouter";
import { followChanges } from "../api/changes";
import { ApiError, ServerAway } from "../api/client";
import { Empty, Loading } from "../components/basics";
import { Missing } from "../components/Problem";
import { needsLogin } from "./connection";
import { Login } from "./Login";
import { SCREENS } from "./screens";
import { logins, useNamespace } from "./session";
import { Shell } from "./Shell";
import { useStore } from "./store";
import { theme } from "./theme";

const client = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 1000,
      // The browser's idea of being online says nothing of a server on this machine.
      networkMode: "always",
      refetchOnWindowFocus: false,
      retry: (failures, error) =>
        failures < 2 && !(error instanceof ServerAway) && !(error instanceof ApiError && error.status < 500),
    },
    mutations: { networkMode: "always" },
  },
});
const BASE = new URL(document.baseURI).pathname.replace(/\/$/, "");
const nonce = document.querySelector<HTMLMetaElement>('meta[name="style-nonce"]')?.content ?? "";
// What keeps the page behind a dialog from scrolling makes a style tag, and looks for the nonce here.
Object.assign(globalThis, { __webpack_nonce__: nonce });
const scheme = document.documentElement.getAttribute("data-mantine-color-scheme") === "dark" ? "dark" : "light";

export function App() {
  return (
    <MantineProvider theme={theme} defaultColorScheme={scheme} getStyleNonce={() => nonce} colorSchemeManager={inPage}>
      <QueryClientProvider client={client}>
        <Router base={BASE}><Gate /></Router>
      </QueryClientProvider>
    </MantineProvider>
  );
}

/** The colours of this page; which were chosen is remembered by whoever chooses. */
const inPage = {
  get: () => scheme as "dark" | "light",
  set: () => undefined,
  subscribe: () => undefined,
  unsubscribe: () => undefined,
  clear: () => undefined,
};

function Gate() {
  const asksForLogin = useStore(needsLogin);
  if (asksForLogin) return <Login onDone={() => void client.invalidateQueries()} />;
  return <Screens />;
}

/** The router leaves those characters quoted that have a meaning in an address; ids may hold them. */
const unquoted = (params: Record<string, string>): Record<string, string> =>
  Object.fromEntries(Object.entries(params).map(([name, value]) => [name, value?.replace(/%(?:3B|2F|3F|3A|40|26|3D|2B|24|2C|23)/gi, decodeURIComponent)]));

function Screens() {
  const space = useNamespace();
  const login = useStore(logins);
  useEffect(() => followChanges(client), [space, login]);
  return (
    <Shell>
      <Crash>
        <Suspense fallback={<Loading />}>
          <Switch>
            {SCREENS.map(({ path, component: Screen }) => (
              <Route key={path} path={path}>
                {(params) => <Screen key={JSON.stringify(params)} params={unquoted(params as Record<string, string>)} />}
              </Route>
            ))}
            <Route><Missing /></Route>
          </Switch>
        </Suspense>
      </Crash>
    </Shell>
  );
}

/** A screen that breaks does not take the others with it. */
class Crash extends Component<{ children: ReactNode }, { error: Error | null }> {
  override state = { error: null as Error | null };

  static getDerivedStateFromError(error: Error) {
    return { error };
  }

  override render() {
    if (!this.state.error) return this.props.children;
    return (
      <Empty title="This screen could not be shown" text={this.state.error.message}>
        <button type="button" className="chip" onClick={() => location.reload()}>Load the page again</button>
      </Empty>
    );
  }
}
