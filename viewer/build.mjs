// node build.mjs FOLDER: bundle the page into FOLDER. node build.mjs --tests FOLDER: bundle each test for node --test.
import { build } from "esbuild";
import { copyFile, readdir } from "node:fs/promises";
import { join } from "node:path";

const [first, second] = process.argv.slice(2);
const shared = {
  bundle: true,
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  logLevel: "warning",
};

if (first === "--tests") {
  const tests = (await readdir("test")).filter((name) => name.endsWith(".test.ts"));
  await build({
    ...shared,
    entryPoints: tests.map((name) => join("test", name)),
    outdir: second,
    platform: "node",
    format: "esm",
    jsx: "automatic",
    jsxImportSource: "preact",
  });
} else {
  // One classic script: a page opened from a file may not load modules.
  await build({
    ...shared,
    entryPoints: { bundle: "src/main.tsx" },
    outdir: first,
    format: "iife",
    minify: true,
    jsx: "automatic",
    jsxImportSource: "preact",
  });
  await build({ ...shared, entryPoints: { bundle: "src/style.css" }, outdir: first, minify: true });
  await copyFile("src/index.html", join(first, "index.html"));
}
