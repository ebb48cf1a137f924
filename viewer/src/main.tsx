import { render } from "preact";
import { App } from "./app";
import { ServedSource, takeToken } from "./served_source";
import { StaticSource } from "./static_source";

// Another address of a server in the same tab: its token is taken by a new page.
window.addEventListener("hashchange", () => {
  if (window.location.hash.includes("token=")) window.location.reload();
});

const root = document.getElementById("app");
if (root !== null) {
  const source =
    document.getElementById("run") === null
      ? new ServedSource(takeToken(window))
      : new StaticSource(document);
  root.replaceChildren();
  render(<App source={source} />, root);
}
