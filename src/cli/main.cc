#include <csignal>
#include <iostream>

#include "base/text.h"
#include "command.h"

namespace moracle::cli {
namespace {
volatile std::sig_atomic_t interrupt_count = 0;
extern "C" void on_interrupt(int signal) {
  interrupt_count = interrupt_count + 1;
  if (interrupt_count > 1) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}
}  // namespace

bool interrupted() {
  return interrupt_count > 0;
}

void catch_interrupts() {
  std::signal(SIGINT, on_interrupt);
  std::signal(SIGTERM, on_interrupt);
  std::signal(SIGXFSZ, SIG_IGN);  // a file at the limit of its size is an error of the write
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error of the stream, not the end
}

void add_verb(CLI::App& app, const char* name, const char* summary,
              const std::function<Work(CLI::App&)>& build, Work& chosen) {
  CLI::App* verb = app.add_subcommand(name, summary);
  const Work work = build(*verb);
  verb->callback([work, &chosen] { chosen = work; });
}

int fail(const Error& error) {
  std::cerr << "moracle: " << error.to_string() << "\n";
  switch (error.kind) {
    case ErrorKind::kIo:
    case ErrorKind::kOutOfMemory:
    case ErrorKind::kCancelled:
      return kFailed;
    default:
      return kBadInput;
  }
}

void print(const Json& json) {
  std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
}

namespace {

int parse_and_run(int argc, char** argv) {
  CLI::App app(
      "Quantized Mixture-of-Experts: runs a checkpoint, and says which kernel serves it and why.",
      "moracle");
  app.require_subcommand(1);
  app.set_version_flag("--version", "moracle " MORACLE_VERSION);
  app.failure_message([](const CLI::App*, const CLI::Error& e) {
    return "moracle: " + std::string(e.what()) + " (moracle --help shows the usage)\n";
  });
  Work chosen;
#define X(verb) add_##verb(app, chosen);
#include "verbs.inc"
#undef X
  // CLI11 would only say that a verb is missing.
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands([](CLI::App*) { return true; })) {
    verbs.push_back(verb->get_name());
  }
  if (argc > 1 && argv[1][0] != '-' &&
      std::find(verbs.begin(), verbs.end(), argv[1]) == verbs.end()) {
    return fail({ErrorKind::kInvalidArgument, "", str("verb '", argv[1], "'"),
                 "one of " + join(verbs), "it is none of these (moracle --help shows the usage)"});
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const bool asked_for_help = e.get_exit_code() == 0;
    app.exit(e);
    return asked_for_help ? kDone : kBadInput;
  }
  return chosen();
}

}  // namespace
}  // namespace moracle::cli

int main(int argc, char** argv) {
  moracle::cli::catch_interrupts();
  const int code = moracle::cli::parse_and_run(argc, argv);
  std::cout.flush();
  return code == moracle::cli::kDone && !std::cout ? moracle::cli::kFailed : code;
}
