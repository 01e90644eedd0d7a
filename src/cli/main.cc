#include <iostream>

#include "base/printable.h"
#include "base/text.h"
#include "command.h"
#include "process.h"
#include "ranks/ranks.h"

namespace moracle::cli {

void add_verb(CLI::App& app, const char* name, const char* summary,
              const std::function<Work(CLI::App&)>& build, Work& chosen) {
  CLI::App* verb = app.add_subcommand(name, summary);
  const Work work = build(*verb);
  verb->callback([work, &chosen] { chosen = work; });
}

namespace {
bool has_failed = false;  // an error is already on stderr
const CLI::App* running_verb = nullptr;
}  // namespace

int fail(const Error& with_fields) {
  const Error error =
      running_verb == nullptr ? with_fields : with_options(with_fields, *running_verb);
  has_failed = true;
  errors() << "moracle: " << rank_prefix() << error.to_string() << "\n" << std::flush;
  tell_ranks(error);
  switch (error.kind) {
    case ErrorKind::kIo:
    case ErrorKind::kOutOfMemory:
    case ErrorKind::kCancelled:
      return kFailed;
    default:
      return kBadInput;
  }
}

int fail_output() {
  return fail({ErrorKind::kIo, "", "standard output", "to accept the whole output",
               "it is full or closed"});
}

void print(const Json& json) {
  std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
}

namespace {

// Rejects empty option values, for example from an unset shell variable. Otherwise they would count
// as absent.
void refuse_empty_texts(CLI::App& verb) {
  const auto check = [](std::string& text) -> std::string {
    return text.empty() ? "needs a value; it is empty" : "";
  };
  for (CLI::Option* option : verb.get_options()) {
    if (!option->nonpositional() || option->get_items_expected_max() == 0) continue;
    option->transform(CLI::Validator(check, ""));
  }
}

int parse_and_run(int argc, char** argv) {
  CLI::App app(
      "Runs quantized Mixture-of-Experts models, and explains which kernel serves each layer.",
      "moracle");
  app.require_subcommand(1);
  app.set_version_flag("--version", "moracle " MORACLE_VERSION);
  app.failure_message([](const CLI::App*, const CLI::Error& e) {
    constexpr size_t kLongest = 400;  // messages repeat arguments
    return "moracle: " + printable(e.what(), kLongest) + " (moracle --help shows the usage)\n";
  });
  Work chosen;
#define X(verb) add_##verb(app, chosen);
#include "verbs.inc"
#undef X
  // List the verbs: CLI11 only reports that a verb is missing.
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands([](CLI::App*) { return true; })) {
    verbs.push_back(verb->get_name());
  }
  for (CLI::App* verb : app.get_subcommands([](CLI::App*) { return true; }))
    refuse_empty_texts(*verb);
  if (argc > 1 && argv[1][0] != '-' &&
      std::find(verbs.begin(), verbs.end(), argv[1]) == verbs.end()) {
    return fail({ErrorKind::kInvalidArgument, "", "verb " + quote(argv[1]), "one of " + join(verbs),
                 "it is unknown (moracle --help shows the usage)"});
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const bool asked_for_help = e.get_exit_code() == 0;
    app.exit(e);
    return asked_for_help ? kDone : kBadInput;
  }
  running_verb = app.get_subcommands().front();
  const int code = chosen();
  running_verb = nullptr;
  return code;
}

int run_and_flush(int argc, char** argv) {
  const int code = parse_and_run(argc, argv);
  std::cout.flush();
  const int all = !std::cout && !has_failed ? fail_output() : code;
  leave_ranks(all);
  return all;
}

}  // namespace
}  // namespace moracle::cli

int main(int argc, char** argv) {
  using namespace moracle::cli;
  fill_closed_streams();
  catch_signals();
  return run_guarded(run_and_flush, argc, argv);
}
