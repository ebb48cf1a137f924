import { render } from "preact";
import { App } from "./app";
import { ServedSource, takeToken } from "./served_source";
import { StaticSource } from "./static_source";

const root = document.getElementById("app");
if (root !== null) {
  const source =
    document.getElementById("run") === null ? new ServedSource(takeToken(window)) : new StaticSource(document);
  root.replaceChildren();
  render(<App source={source} />, root);
}
