// Shared by the verbs: exit codes, errors, output.
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
  kFailed = 1,    // I/O error, out of memory, failed check, Ctrl-C
  kBadInput = 2,  // wrong usage, invalid file, request that no backend serves
};

/// A verb's work, run after the command line is parsed.
using Work = std::function<int()>;

/// Adds a verb. `build` declares its options and returns its work.
void add_verb(CLI::App& app, const char* name, const char* summary,
              const std::function<Work(CLI::App&)>& build, Work& chosen);

/// Replaces field names in a library error by options of `verb`: "--kv-cache" for "kv_cache", as
/// the place, or in parentheses in the need.
Error with_options(Error error, const CLI::App& verb);

/// Prints one line on stderr, with options in place of fields, and returns the exit code of the
/// error.
int fail(const Error& error);

/// As fail(), if stdout did not accept all output.
int fail_output();

/// Prints one JSON document on stdout. Replaces invalid UTF-8.
void print(const Json& json);

/// True after Ctrl-C or SIGTERM. Check it between steps, and stop cleanly. A second Ctrl-C kills
/// the process.
bool interrupted();

#define X(verb) void add_##verb(CLI::App& app, Work& chosen);
#include "verbs.inc"
#undef X

}  // namespace moracle::cli

/// Declares or assigns the value of a Result, or returns from the verb with its error.
#define MORACLE_CLI_TRY_(name, declaration, ...)        \
  auto name = (__VA_ARGS__);                            \
  if (!name) return ::moracle::cli::fail(name.error()); \
  declaration = *std::move(name)
#define MORACLE_CLI_TRY_LINE_(line, declaration, ...) \
  MORACLE_CLI_TRY_(cli_try_##line, declaration, __VA_ARGS__)
#define MORACLE_CLI_TRY_EXPAND_(line, declaration, ...) \
  MORACLE_CLI_TRY_LINE_(line, declaration, __VA_ARGS__)
#define CLI_TRY(declaration, ...) MORACLE_CLI_TRY_EXPAND_(__LINE__, declaration, __VA_ARGS__)
