// moracle run: generates text from a prompt.
#include <chrono>
#include <filesystem>
#include <iostream>

#include "base/printable.h"
#include "base/text.h"
#include "chat/answer_text.h"
#include "chat/chat_history.h"
#include "command.h"
#include "models/state/sequence_file.h"
#include "numbers.h"
#include "options/run_options.h"
#include "options/tokenizer_fact.h"
#include "plan_text.h"
#include "ranks/routing_file.h"
#include "ranks/run_prompts.h"
#include "terminal.h"
#include "text_file.h"

namespace moracle::cli {
namespace run_verb {
namespace {

using Options = RunOptions;

Result<std::string> prompt_text(const Options& options, std::optional<ChatHistory>& chat) {
  std::string text = options.prompts.empty() ? "" : options.prompts[0];
  if (!options.prompt_file.empty()) {
    MORACLE_TRY(text, read_text(options.prompt_file, "--prompt-file"));
  }
  if (!options.chat) return text;
  MORACLE_TRY(chat, ChatHistory::open(options.model.folder, options.system, options.tools));
  MORACLE_CHECK(chat->ask(text));
  return chat->prompt();
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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

// What the experts in slots of a GPU served; empty if there are no slots.
std::string slots_text(const PlacementCounts& counts) {
  const int64_t choices = counts.hits + counts.misses;
  if (choices == 0) return "";
  const double share = static_cast<double>(counts.hits) / static_cast<double>(choices);
  std::string text = str("  experts     ", rounded(100 * share, 1), " % of the choices in slots, ",
                         counts.moves, " moves of together ", megabytes(counts.bytes_moved), "\n");
  if (counts.hits_of_devices.size() > 1) {
    text += "              in slots of the devices: ";
    for (size_t d = 0; d < counts.hits_of_devices.size(); ++d)
      text += str(d > 0 ? ", " : "", counts.hits_of_devices[d]);
    text += " choices\n";
  }
  if (counts.steps_us <= 0) return text;
  const auto percent = [&](double us) { return rounded(100 * us / counts.steps_us, 1); };
  text += str("  waits       the host ", percent(counts.host_waits_us), " % of the steps' time");
  if (counts.slots_wait_us >= 0) text += str(", the device ", percent(counts.slots_wait_us), " %");
  return text + "\n";
}

// --dry-run: makes all decisions before weights are read, and stops.
int dry_run(const Options& options) {
  CLI_TRY(const Checkpoint checkpoint, Checkpoint::open(options.model.folder));
  CLI_TRY(const Machine machine, Machine::find(options.machine));
  CLI_TRY(ModelOptions model_options, options.model.options(machine));
  if (Status added = options.speculation.add_to(model_options, checkpoint); !added)
    return fail(added.error());
  CLI_TRY(const ModelPlan whole, plan(checkpoint, model_options, machine));
  const TokenizerFact tokenizer = TokenizerFact::of(options.model.folder);
  if (options.model.json) {
    Json json = to_json(whole);
    json["tokenizer"] = tokenizer.json();
    json["not_used"] = checkpoint.not_used();
    print(json);
    return kDone;
  }
  show(whole, model_options.rates);
  std::cout << not_used_text(checkpoint);
  if (!tokenizer.error.empty())
    std::cout << "\n  the tokenizer " << printable(tokenizer.text()) << "\n";
  return kDone;
}

// --prompt-cache: computes the prompt but its last token, or takes it from the file. Returns the
// number of tokens that came from the file.
Result<int64_t> read_cached_prompt(Model& model, const SequenceSource& source,
                                   std::span<const int32_t> prompt, const Options& options,
                                   std::optional<KeptSequence>& kept, const Progress& progress) {
  const auto size = static_cast<int64_t>(prompt.size());
  if (size >= model.max_context()) return int64_t{0};  // generate() reports it
  const int64_t capacity =
      std::min(size + options.max_tokens.value_or(model.max_context()), model.max_context());
  if (std::error_code ignored; std::filesystem::exists(options.prompt_cache, ignored)) {
    MORACLE_TRY(kept, load_sequence(model, source, options.prompt_cache, capacity));
  } else {
    MORACLE_TRY(KvCache cache, model.make_cache(capacity));
    kept.emplace(KeptSequence{std::move(cache)});
  }
  MORACLE_TRY(const int64_t reused, read_prompt(model, prompt, *kept, source.adapter, progress));
  if (reused + 1 < size) MORACLE_CHECK(save_sequence(model, source, *kept, options.prompt_cache));
  return reused;
}

int run(const Options& options) {
  if (options.dry_run) return dry_run(options);
  if (!options.prompt_cache.empty() && options.prompt_file.empty() && options.prompts.size() != 1) {
    return fail({ErrorKind::kUnsupported, "", "--prompt-cache", "one prompt (-p or --prompt-file)",
                 str("there are ", options.prompts.size())});
  }
  if (!options.has_prompt() && !options.model.ranks.given()) return run_conversation(options);
  if (!options.has_prompt()) {
    return fail({ErrorKind::kUnsupported, "", "--parallel", "a prompt (-p or --prompt-file)",
                 "a conversation runs in one process"});
  }
  if (options.prompts.size() > 1) return run_prompts(options);
  const auto start = std::chrono::steady_clock::now();
  CLI_TRY(const Checkpoint checkpoint, Checkpoint::open(options.model.folder));
  CLI_TRY(const Tokenizer tokenizer, Tokenizer::open(options.model.folder));
  CLI_TRY(const GenerationConfig config, GenerationConfig::open(checkpoint, &tokenizer));
  CLI_TRY(ModelOptions model_options, options.model.options());
  if (model_options.spread == Spread::kDispatched) {
    return fail(
        {ErrorKind::kUnsupported, "", "--parallel",
         "mode=replicated, or several prompts (-p A -p B …)",
         "it is mode=dispatched, which needs a prompt for each rank, and there is one prompt"});
  }
  if (Status joined = options.model.join(model_options); !joined) return fail(joined.error());
  std::optional<ChatHistory> chat;
  std::vector<int32_t> prompt;
  if (is_first_rank()) {  // only rank 0 reads stdin
    CLI_TRY(const std::string text, prompt_text(options, chat));
    CLI_TRY(prompt, options.chat ? tokenizer.encode(text) : tokenizer.encode_prompt(text));
  }
  if (Status shared = share_ids(model_options.group, prompt); !shared) return fail(shared.error());
  if (Status added = options.speculation.add_to(model_options, checkpoint); !added)
    return fail(added.error());
  // Report invalid options before loading.
  CLI_TRY(GenerateOptions generate_options, options.generating(config, tokenizer));
  if (prompt.empty()) {
    return fail({ErrorKind::kInvalidArgument, "", "prompt", "at least one token", "it is empty"});
  }

  RoutingFile routing(options.routing_statistics);
  if (Status good = routing.begin(model_options); !good) return fail(good.error());
  ProgressBar loading("loading");
  model_options.progress = loading.callback();
  CLI_TRY(Model model, Model::load(checkpoint, model_options));
  loading.clear();
  const double load_seconds = seconds_since(start);

  const bool people = !options.model.json;
  if (people) {
    show_choices(model, checkpoint);
    std::cerr << not_followed_text(config);
  }
  AnswerText answer(tokenizer, chat ? &*chat : nullptr, options.stop_strings(config));
  // An answer starts a new text; a continuation keeps the space before its first word.
  if (!options.chat) {
    if (Status follows = answer.follow(prompt); !follows) return fail(follows.error());
  }
  std::string output;
  ProgressBar reading("reading the prompt");
  generate_options.sampling.excluded_ids = tokenizer.ids_without_token(model.vocab_size());
  generate_options.on_prompt = reading.callback();
  Status decoded;
  auto emit = [&](const std::string& piece) {
    output += piece;
    if (people) std::cout << piece << std::flush;
  };
  generate_options.on_token = [&](int32_t id) {
    reading.clear();
    Result<std::string> piece = answer.push(id);
    if (piece)
      emit(*piece);
    else
      decoded = piece.error();
    return decoded.ok() && !interrupted() && std::cout.good() && !answer.stopped();
  };
  std::optional<KeptSequence> kept;
  int64_t cached_tokens = 0;
  double cache_seconds = 0;
  if (!options.prompt_cache.empty()) {
    const auto begin = std::chrono::steady_clock::now();
    const SequenceSource source{checkpoint, model_options, generate_options.adapter};
    CLI_TRY(cached_tokens,
            read_cached_prompt(model, source, prompt, options, kept, generate_options.on_prompt));
    if (kept) generate_options.kept = &*kept;
    cache_seconds = seconds_since(begin);
  }
  CLI_TRY(Generation generation, generate(model, prompt, generate_options));
  generation.prompt_seconds += cache_seconds;
  if (answer.stopped()) generation.stop_reason = "stop";
  if (!decoded) return fail(decoded.error());
  if (Status written = routing.write(model); !written) return fail(written.error());
  if (!std::cout) return fail_output();
  const bool stopped = generation.stop_reason == "cancelled";
  emit(answer.finish(generation.stop_reason == "eos"));
  if (answer.stopped()) generation.stop_reason = "stop";
  Json calls = Json::array();
  for (const serve::ToolCall& call : answer.calls()) {
    const Json arguments = Json::parse(call.arguments, nullptr, /*allow_exceptions=*/false);
    calls.push_back({{"name", call.name}, {"arguments", arguments}});
    if (people)
      std::cout << "\n" << calls.back().dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  const PlacementCounts placed = model.placement_counts();
  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  const auto generated = static_cast<int64_t>(generation.ids.size());
  if (people) {
    std::cout << "\n" << std::flush;
    const std::string drafts = drafts_text(generation.speculation, generation.generation_seconds);
    std::cerr << "\n"
              << "  prompt      " << prompt_tokens << " tokens, "
              << rate(prompt_tokens, generation.prompt_seconds) << " tokens/s"
              << (cached_tokens > 0 ? str(", ", cached_tokens, " from the file") : "") << "\n"
              << "  generation  " << generated << " tokens, "
              << rate(generated - 1, generation.generation_seconds) << " tokens/s, stopped by "
              << (stopped ? "request" : generation.stop_reason) << "\n"
              << "  memory      " << megabytes(peak_memory_bytes()) << " peak, "
              << megabytes(model.weight_bytes()) << " of packed weights\n"
              << slots_text(placed) << "  load        " << rounded(load_seconds, 2) << " s\n"
              << (drafts.empty() ? "" : "  speculation " + drafts + "\n");
  } else {
    Json json = {{"prompt_ids", prompt},
                 {"ids", generation.ids},
                 {"text", output},
                 {"stop_reason", generation.stop_reason},
                 {"backends", backend_names(model)},
                 {"not_used", checkpoint.not_used()},
                 {"not_followed", config.not_followed},
                 {"timing", timing(generation, prompt_tokens, load_seconds)}};
    if (!options.prompt_cache.empty()) json["cached_tokens"] = cached_tokens;
    if (const SpeculationCounts& drafts = generation.speculation; drafts.steps > 0) {
      json["speculation"] = {{"steps", drafts.steps},
                             {"drafted", drafts.drafted},
                             {"accepted", drafts.accepted},
                             {"saved_seconds", drafts.saved_seconds}};
    }
    if (placed.hits + placed.misses > 0) {
      json["experts"] = {
          {"hits", placed.hits},
          {"misses", placed.misses},
          {"moves", placed.moves},
          {"bytes_moved", placed.bytes_moved},
          {"reads", placed.reads},
          {"hits_of_devices", placed.hits_of_devices},
          {"steps_us", placed.steps_us},
          {"host_waits_us", placed.host_waits_us},
          {"slots_wait_us", placed.slots_wait_us < 0 ? Json() : Json(placed.slots_wait_us)}};
    }
    if (!options.tools.empty()) json["tool_calls"] = calls;
    print(json);
  }
  return stopped ? kFailed : kDone;
}

}  // namespace
}  // namespace run_verb

void add_run(CLI::App& app, Work& chosen) {
  add_verb(
      app, "run", "Generate text that continues a prompt",
      [](CLI::App& verb) -> Work {
        auto options = std::make_shared<RunOptions>();
        options->model.add_to(verb);
        auto* source = verb.add_option_group("prompt")->require_option(0, 1);
        source
            ->add_option(
                "-p,--prompt", options->prompts,
                "Text of the prompt; given several times, each is continued by itself, and "
                "ranks with mode=dispatched share them")
            ->allow_extra_args(false);
        source->add_option("--prompt-file", options->prompt_file,
                           "File with the prompt; -: standard input");
        auto* dry = source->add_flag("--dry-run", options->dry_run,
                                     "Show the plan and its memory, and read no weights");
        verb.add_option("--machine", options->machine,
                        "With --dry-run: plan for a known machine (moracle machines lists them)")
            ->needs(dry)
            ->capture_default_str();
        auto* chat = verb.add_flag(
            "--chat", options->chat,
            "Format the prompt with the model's chat template; without a prompt: a conversation "
            "over standard input, one turn per line");
        verb.add_option("--system", options->system, "With --chat: text of a system message")
            ->needs(chat);
        verb.add_option("--tools", options->tools,
                        "With --chat: file with a JSON array of functions that answers may call")
            ->needs(chat);
        verb.add_option("-n,--max-tokens", options->max_tokens,
                        "Maximum number of tokens to generate; default: as in "
                        "generation_config.json, else 128, in a conversation the rest of the "
                        "context")
            ->transform(whole(int64_t{1}, int64_t{1} << 30));
        options->add_sampling_to(verb);
        verb.add_option("--routing-statistics", options->routing_statistics, kRoutingHelp)
            ->excludes(dry);
        verb.add_option("--prompt-cache", options->prompt_cache,
                        "File with the state of a prompt: read if it exists, and written for a "
                        "prompt that it does not hold")
            ->excludes(dry)
            ->excludes(verb.get_option("--parallel"));
        return [options] { return run_verb::run(*options); };
      },
      chosen);
}

}  // namespace moracle::cli
