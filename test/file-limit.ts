/**
 * Preloaded into the process of each test file by test/run.ts: one that still runs after its limit says what keeps it, and
 * ends. The runner itself would wait for ever for a process whose tests are over but which holds on to something.
 */
const { argv, env, stderr } = process
const limitMs = Number(env['TAILRACE_TEST_FILE_LIMIT_MS'])
const file = argv[1] ?? ''

if (limitMs > 0 && file.endsWith('.test.ts')) {
  const late = () => {
    const counts = Map.groupBy(process.getActiveResourcesInfo(), (kind) => kind)
    const held = [...counts].map(([kind, all]) => `${all.length} × ${kind}`).join(', ')
    stderr.write(`${file} still runs after ${limitMs / 1_000} s, and is ended; it holds ${held}\n`, () => process.exit(1))
  }
  setTimeout(late, limitMs).unref()
}
