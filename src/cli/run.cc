// moracle run: generates text from a prompt.
#include <chrono>
#include <iostream>

#include "base/printable.h"
#include "base/text.h"
#include "command.h"
#include "model_options.h"
#include "numbers.h"
#include "plan_text.h"
#include "terminal.h"
#include "text_file.h"
#include "tokenizer_fact.h"

namespace moracle::cli {
namespace run_verb {
namespace {

struct Options {
  ModelArguments model;
  std::string prompt, prompt_file;
  bool chat = false;
  std::optional<std::string> system;
  int64_t max_tokens = 128;
  bool ignore_eos = false, dry_run = false;
  std::string machine = "here";
  // Unset: the values of generation_config.json.
  std::optional<float> temperature, top_p, min_p;
  std::optional<int64_t> top_k;
  uint64_t seed = 0;
};

Result<std::string> prompt_text(const Options& options) {
  std::string text = options.prompt;
  if (!options.prompt_file.empty()) {
    auto read = read_text(options.prompt_file, "--prompt-file");
    if (!read) return read.error();
    text = *std::move(read);
  }
  if (!options.chat) return text;
  auto chat = ChatTemplate::open(options.model.folder);
  if (!chat) return chat.error();
  std::vector<ChatMessage> messages;
  if (options.system) messages.push_back({"system", *options.system});
  messages.push_back({"user", std::move(text)});
  return chat->render(messages);
}

SamplingOptions sampling(const Options& options, const GenerationConfig& config) {
  SamplingOptions sampling = config.sampling;
  if (options.temperature) sampling.temperature = *options.temperature;
  if (options.top_k) sampling.top_k = *options.top_k;
  if (options.top_p) sampling.top_p = *options.top_p;
  if (options.min_p) sampling.min_p = *options.min_p;
  sampling.seed = options.seed;
  return sampling;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string rate(int64_t tokens, double seconds) {
  return seconds > 0 ? rounded(static_cast<double>(tokens) / seconds) : "–";
}

// Shows the backends, one line per group of equal layers.
void show_choices(const Model& model) {
  Table table;
  for (const Choice& choice : model.choices()) {
    std::vector<std::string_view> others;
    for (const Verdict& verdict : choice.selection.considered) {
      if (verdict.accepted() && verdict.backend != choice.selection.plan->backend) {
        others.push_back(verdict.backend->name);
      }
    }
    table.row({choice.part, choice.layers.empty() ? "" : "layers " + ranges(choice.layers),
               name(choice.selection.request.layer.scheme),
               "→ " + std::string(choice.selection.plan->backend->name),
               others.empty() ? "" : "(also possible: " + join(others) + ")"});
  }
  std::cerr << table.text();
}

Json timing(const Generation& generation, int64_t prompt_tokens, double load_seconds) {
  const auto generated = static_cast<int64_t>(generation.ids.size());
  auto per_second = [](int64_t tokens, double seconds) -> Json {
    return seconds > 0 && tokens > 0 ? Json(static_cast<double>(tokens) / seconds) : Json(nullptr);
  };
  return {
      {"load_seconds", load_seconds},
      {"prompt_tokens", prompt_tokens},
      {"prompt_seconds", generation.prompt_seconds},
      {"prompt_tokens_per_second", per_second(prompt_tokens, generation.prompt_seconds)},
      {"generated_tokens", generated},
      {"generation_seconds", generation.generation_seconds},
      {"generation_tokens_per_second", per_second(generated - 1, generation.generation_seconds)},
      {"peak_memory_bytes", peak_memory_bytes()}};
}

// Makes all decisions that precede reading weights, and stops there.
int dry_run(const Options& options) {
  CLI_TRY(const Checkpoint checkpoint, Checkpoint::open(options.model.folder));
  CLI_TRY(const Machine machine, Machine::find(options.machine));
  CLI_TRY(const ModelOptions model_options, options.model.options(machine));
  CLI_TRY(const ModelPlan whole, plan(checkpoint, model_options, machine));
  const TokenizerFact tokenizer = TokenizerFact::of(options.model.folder);
  if (options.model.json) {
    Json json = to_json(whole);
    json["tokenizer"] = tokenizer.json();
    print(json);
    return kDone;
  }
  show(whole);
  if (!tokenizer.error.empty())
    std::cout << "\n  the tokenizer " << printable(tokenizer.text()) << "\n";
  return kDone;
}

int run(const Options& options) {
  if (options.dry_run) return dry_run(options);
  const auto start = std::chrono::steady_clock::now();
  CLI_TRY(const Checkpoint checkpoint, Checkpoint::open(options.model.folder));
  CLI_TRY(const Tokenizer tokenizer, Tokenizer::open(options.model.folder));
  CLI_TRY(const GenerationConfig config, GenerationConfig::open(checkpoint));
  CLI_TRY(const std::string text, prompt_text(options));
  CLI_TRY(const std::vector<int32_t> prompt,
          options.chat ? tokenizer.encode(text) : tokenizer.encode_prompt(text));
  // Report errors in the request before loading anything.
  const SamplingOptions drawing = sampling(options, config);
  if (Status good = check(drawing); !good) return fail(good.error());
  if (prompt.empty()) {
    return fail({ErrorKind::kInvalidArgument, "", "prompt", "at least one token", "it is empty"});
  }

  ProgressBar loading("loading");
  CLI_TRY(ModelOptions model_options, options.model.options());
  model_options.progress = loading.callback();
  CLI_TRY(Model model, Model::load(checkpoint, model_options));
  loading.clear();
  const double load_seconds = seconds_since(start);

  const bool people = !options.model.json;
  if (people) show_choices(model);
  TokenStream stream(tokenizer);
  // An answer is a text of its own; a continuation keeps the space before its first word.
  if (!options.chat) {
    if (Status follows = stream.follow(prompt); !follows) return fail(follows.error());
  }
  std::string output;
  ProgressBar reading("reading the prompt");
  GenerateOptions generate_options{.max_tokens = options.max_tokens, .sampling = drawing};
  generate_options.sampling.excluded_ids = tokenizer.ids_without_token(model.vocab_size());
  if (!options.ignore_eos) generate_options.stop_ids = config.eos_ids;
  generate_options.adapter = options.model.adapter();
  generate_options.on_prompt = reading.callback();
  Status decoded;
  auto emit = [&](const std::string& piece) {
    output += piece;
    if (people) std::cout << piece << std::flush;
  };
  generate_options.on_token = [&](int32_t id) {
    reading.clear();
    Result<std::string> piece = stream.push(id);
    if (piece)
      emit(*piece);
    else
      decoded = piece.error();
    return decoded.ok() && !interrupted() && std::cout.good();
  };
  CLI_TRY(const Generation generation, generate(model, prompt, generate_options));
  if (!decoded) return fail(decoded.error());
  if (!std::cout) return fail_output();
  const bool stopped = generation.stop_reason == "cancelled";
  emit(stream.finish());

  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  const auto generated = static_cast<int64_t>(generation.ids.size());
  if (people) {
    std::cout << "\n" << std::flush;
    std::cerr << "\n"
              << "  prompt      " << prompt_tokens << " tokens, "
              << rate(prompt_tokens, generation.prompt_seconds) << " tokens/s\n"
              << "  generation  " << generated << " tokens, "
              << rate(generated - 1, generation.generation_seconds) << " tokens/s, stopped by "
              << (stopped ? "request" : generation.stop_reason) << "\n"
              << "  memory      " << megabytes(peak_memory_bytes()) << " peak, "
              << megabytes(model.weight_bytes()) << " of packed weights\n"
              << "  load        " << rounded(load_seconds, 2) << " s\n";
  } else {
    print({{"prompt_ids", prompt},
           {"ids", generation.ids},
           {"text", output},
           {"stop_reason", generation.stop_reason},
           {"backends", backend_names(model)},
           {"timing", timing(generation, prompt_tokens, load_seconds)}});
  }
  return stopped ? kFailed : kDone;
}

}  // namespace
}  // namespace run_verb

void add_run(CLI::App& app, Work& chosen) {
  add_verb(
      app, "run", "Generate text that continues a prompt",
      [](CLI::App& verb) -> Work {
        auto options = std::make_shared<run_verb::Options>();
        options->model.add_to(verb);
        auto* source = verb.add_option_group("prompt")->require_option(1);
        source->add_option("-p,--prompt", options->prompt, "Text of the prompt");
        source->add_option("--prompt-file", options->prompt_file,
                           "File with the prompt; -: standard input");
        auto* dry = source->add_flag("--dry-run", options->dry_run,
                                     "Show the plan and its memory, and read no weights");
        verb.add_option("--machine", options->machine,
                        "With --dry-run: plan for a known machine (moracle machines lists them)")
            ->needs(dry)
            ->capture_default_str();
        auto* chat = verb.add_flag("--chat", options->chat,
                                   "Format the prompt with the model's chat template");
        verb.add_option("--system", options->system, "With --chat: text of a system message")
            ->needs(chat);
        verb.add_option("-n,--max-tokens", options->max_tokens,
                        "Maximum number of tokens to generate")
            ->transform(whole(int64_t{1}, int64_t{1} << 30))
            ->capture_default_str();
        verb.add_option("--temperature", options->temperature,
                        "Sampling temperature; 0: greedy; default: as in generation_config.json");
        verb.add_option("--top-k", options->top_k,
                        "Sample only from the k most likely tokens; 0: off")
            ->transform(whole());
        verb.add_option(
            "--top-p", options->top_p,
            "Sample from the most likely tokens whose probabilities reach this sum; 1: off");
        verb.add_option("--min-p", options->min_p,
                        "Drop tokens below this share of the highest probability; 0: off");
        verb.add_option("--seed", options->seed, "Random seed of the sampling")
            ->transform(whole<uint64_t>())
            ->capture_default_str();
        verb.add_flag("--ignore-eos", options->ignore_eos, "Continue after an end-of-text token");
        return [options] { return run_verb::run(*options); };
      },
      chosen);
}

}  // namespace moracle::cli
