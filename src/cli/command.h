// Shared code of the verbs: exit codes, errors, output.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "moracle/moracle.h"

namespace moracle::cli {

using Json = nlohmann::ordered_json;

/// Exit codes of the command.
enum Exit : int {
  kDone = 0,
  kFailed = 1,    // the work failed: I/O, memory, a check that does not hold, stopped by Ctrl-C
  kBadInput = 2,  // wrong usage, a broken file, a request that nothing can serve
};

/// A verb's work, run after the command line has been parsed.
using Work = std::function<int()>;

/// Adds a verb; `build` declares its options on the subcommand and returns the work.
void add_verb(CLI::App& app, const char* name, const char* summary,
              const std::function<Work(CLI::App&)>& build, Work& chosen);

/// The error of the library with options of `verb` in place of fields: "--kv-cache" for "kv_cache",
/// as the place, or in parentheses in the need.
Error with_options(Error error, const CLI::App& verb);

/// Prints one line on stderr, with options in place of fields, and returns the exit code of the
/// error.
int fail(const Error& error);

/// Same, if stdout took less than the whole answer.
int fail_output();

/// Prints JSON on stdout, as one document with invalid UTF-8 replaced.
void print(const Json& json);

/// True after Ctrl-C or SIGTERM. Work checks this between steps and ends in order. A second Ctrl-C
/// ends the process at once.
bool interrupted();

#define X(verb) void add_##verb(CLI::App& app, Work& chosen);
#include "verbs.inc"
#undef X

}  // namespace moracle::cli

/// Declares or assigns the value of a Result, or ends the verb with its error.
#define MORACLE_CLI_TRY_(name, declaration, ...)        \
  auto name = (__VA_ARGS__);                            \
  if (!name) return ::moracle::cli::fail(name.error()); \
  declaration = *std::move(name)
#define MORACLE_CLI_TRY_LINE_(line, declaration, ...) \
  MORACLE_CLI_TRY_(cli_try_##line, declaration, __VA_ARGS__)
#define MORACLE_CLI_TRY_EXPAND_(line, declaration, ...) \
  MORACLE_CLI_TRY_LINE_(line, declaration, __VA_ARGS__)
#define CLI_TRY(declaration, ...) MORACLE_CLI_TRY_EXPAND_(__LINE__, declaration, __VA_ARGS__)
