// moracle perplexity: measures how well a model predicts a text.
#include <iostream>

#include "command.h"
#include "numbers.h"
#include "options/model_options.h"
#include "ranks/routing_file.h"
#include "terminal.h"
#include "text_file.h"

namespace moracle::cli {
namespace perplexity_verb {
namespace {

struct Options {
  ModelArguments model;
  std::string text_file, routing_statistics;
  int64_t window = 512;
  int64_t max_tokens = 8192;
};

int run(const Options& options) {
  CLI_TRY(const Checkpoint checkpoint, Checkpoint::open(options.model.folder));
  CLI_TRY(const Tokenizer tokenizer, Tokenizer::open(options.model.folder));
  CLI_TRY(ModelOptions model_options, options.model.options());
  if (Status joined = options.model.join(model_options); !joined) return fail(joined.error());
  std::vector<int32_t> ids;
  if (is_first_rank()) {  // only rank 0 reads stdin
    CLI_TRY(const std::string text, read_text(options.text_file, "--text"));
    CLI_TRY(ids, tokenizer.encode(text));
    if (static_cast<int64_t>(ids.size()) > options.max_tokens) ids.resize(options.max_tokens);
  }
  if (Status shared = share_ids(model_options.group, ids); !shared) return fail(shared.error());

  RoutingFile routing(options.routing_statistics);
  if (Status good = routing.begin(model_options); !good) return fail(good.error());
  ProgressBar bar("loading");
  model_options.progress = bar.callback();
  CLI_TRY(Model model, Model::load(checkpoint, model_options));
  bar.clear();
  ProgressBar scoring("scoring");
  CLI_TRY(const Perplexity result,
          perplexity(model, ids, options.window, scoring.callback(), options.model.adapter()));
  scoring.clear();
  if (Status written = routing.write(model); !written) return fail(written.error());
  if (options.model.json) {
    print({{"perplexity", result.perplexity},
           {"nll", result.nll},
           {"scored_tokens", result.scored_tokens},
           {"backends", backend_names(model)}});
  } else {
    std::cout << "perplexity " << rounded(result.perplexity, 4) << " (nll "
              << rounded(result.nll, 6) << " over " << result.scored_tokens
              << " tokens, windows of " << options.window << " tokens)\n";
  }
  return kDone;
}

}  // namespace
}  // namespace perplexity_verb

void add_perplexity(CLI::App& app, Work& chosen) {
  add_verb(
      app, "perplexity", "Measure how well a model predicts a text",
      [](CLI::App& verb) -> Work {
        auto options = std::make_shared<perplexity_verb::Options>();
        options->model.add_to(verb);
        verb.add_option("--text", options->text_file,
                        "File with the text in UTF-8; -: standard input")
            ->required();
        verb.add_option("--routing-statistics", options->routing_statistics, kRoutingHelp);
        verb.add_option("--window", options->window,
                        "Tokens per window; each window is scored without the others")
            ->transform(whole())
            ->capture_default_str();
        verb.add_option("--max-tokens", options->max_tokens,
                        "Use at most this many tokens of the text")
            ->transform(whole(int64_t{2}, int64_t{1} << 40))
            ->capture_default_str();
        return [options] { return perplexity_verb::run(*options); };
      },
      chosen);
}

}  // namespace moracle::cli
