#include "serve_model.h"

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "base/text.h"
#include "bench/random_serving.h"
#include "bench_verb/bench.h"
#include "plan_text.h"
#include "terminal.h"

namespace moracle::cli {
namespace serve_verb {
namespace {

constexpr int64_t kCacheOfShapes = int64_t{1} << 30;

// Parses NAME=DIR and reads the adapters. Errors: a missing name or folder; a duplicate name; those
// of LoraAdapter::open.
Status add_served_adapters(const std::vector<std::string>& pairs, const Checkpoint& checkpoint,
                           ModelOptions& options, serve::ServedModel& served) {
  for (const std::string& pair : pairs) {
    const size_t at = pair.find('=');
    if (at == 0 || at == std::string::npos || at + 1 == pair.size()) {
      return Error{ErrorKind::kInvalidArgument, "", "--lora", "NAME=DIR", "it is " + quote(pair)};
    }
    const std::string name = pair.substr(0, at);
    if (name == served.name) {
      return Error{ErrorKind::kInvalidArgument, "", "--lora", "a name other than the model's",
                   "it is " + quote(name)};
    }
    MORACLE_TRY(LoraAdapter adapter, LoraAdapter::open(pair.substr(at + 1), checkpoint));
    options.read_adapters.push_back(std::make_shared<const LoraAdapter>(std::move(adapter)));
    if (const Status added = served.adapters->add(name, options.read_adapters.back()); !added) {
      Error error = added.error();
      error.place = "--lora";
      return error;
    }
  }
  return {};
}

// KV cache for all sequences at full context, at most half of the free memory. With slots for
// experts: what these leave. `limit`: of the model's memory; 0: that of the device.
int64_t default_cache_bytes(const ModelPlan& plan, int64_t max_context, int64_t max_running,
                            int64_t device_memory, int64_t limit) {
  if (device_memory > 0) return std::max<int64_t>(device_memory - plan.total_bytes(), 1);
  constexpr int64_t kLongestPage = 512;  // the last page of a sequence is partly used
  const int64_t all = (max_context + kLongestPage) * max_running * plan.cache_bytes_per_token;
  const int64_t memory = limit > 0 ? std::min(limit, plan.memory_bytes) : plan.memory_bytes;
  return std::min(all, std::max<int64_t>((memory - plan.total_bytes()) / 2, 0));
}

// Minimum over all ranks: each rank has memory for this much.
Status take_smallest(const std::shared_ptr<Group>& group, int64_t& number) {
  if (!group) return {};
  std::vector<int64_t> all(static_cast<size_t>(group->size()));
  MORACLE_CHECK(group->all_gather(std::as_bytes(std::span(&number, 1)),
                                  std::as_writable_bytes(std::span(all))));
  number = *std::min_element(all.begin(), all.end());
  return {};
}

// The plan's choices with all candidates and reasons.
Json considered(const ModelPlan& plan) {
  Json json = to_json(plan);
  for (size_t i = 0; i < plan.choices.size(); ++i)
    json["choices"][i]["considered"] = considered_json(plan.choices[i].selection);
  return json;
}

std::string one_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<ServedWeights> load_checkpoint(const ServeArguments& arguments, ModelOptions options,
                                      serve::EngineOptions& engine,
                                      const std::function<bool()>& is_cancelled = {}) {
  const std::string& folder = arguments.model.folder;
  MORACLE_TRY(const Checkpoint checkpoint, Checkpoint::open(folder));
  MORACLE_CHECK(arguments.speculation.add_to(options, checkpoint));
  MORACLE_TRY(serve::ServedModel served, serve::ServedModel::open(checkpoint));
  served.name = arguments.name;
  if (served.name.empty())
    served.name = std::filesystem::weakly_canonical(folder).filename().string();
  served.adapters = std::make_shared<serve::Adapters>(arguments.adapter_folder);
  MORACLE_CHECK(add_served_adapters(arguments.adapters, checkpoint, options, served));
  MORACLE_TRY(const ModelPlan whole, plan(checkpoint, options));
  served.explanation = one_line(considered(whole));
  MORACLE_TRY(const Outline outlined, outline(checkpoint));
  if (engine.cache_bytes == 0)
    engine.cache_bytes = default_cache_bytes(whole, outlined.max_context, engine.max_running,
                                             options.device_memory, arguments.model_memory);
  MORACLE_CHECK(take_smallest(options.group, engine.cache_bytes));
  options.cache_bytes = engine.cache_bytes;
  served.options = options;
  ProgressBar loading("loading");
  options.progress = [&, draw = loading.callback()](int64_t done, int64_t total) {
    return draw(done, total) && !(is_cancelled && is_cancelled());
  };
  MORACLE_TRY(Model model, Model::load(checkpoint, options));
  loading.clear();
  errors() << not_followed_text(served.generation);
  return ServedWeights{std::move(served), std::move(model)};
}

Result<Tokenizer> tokenizer_of_shape(const ServeArguments& arguments, int64_t vocab_size) {
  if (arguments.tokenizer.empty()) return bench::random_tokenizer(vocab_size);
  MORACLE_TRY(Tokenizer tokenizer, Tokenizer::open(arguments.tokenizer));
  if (tokenizer.vocab_size() <= vocab_size) return tokenizer;
  return Error{ErrorKind::kInvalidArgument, "", "--tokenizer",
               str("at most the shape's ", vocab_size, " tokens"),
               str("it has ", tokenizer.vocab_size())};
}

Result<ServedWeights> load_shape(const ServeArguments& arguments, ModelOptions options,
                                 serve::EngineOptions& engine) {
  MORACLE_TRY(const bench::ModelShape shape, bench::find_model(arguments.shape));
  MORACLE_TRY(const Scheme scheme, parse_scheme(arguments.scheme));
  MORACLE_TRY(Tokenizer tokenizer, tokenizer_of_shape(arguments, shape.vocab_size));
  const int64_t memory = device_memory(options.device);
  if (engine.cache_bytes == 0) engine.cache_bytes = kCacheOfShapes;
  options.cache_bytes = engine.cache_bytes;
  ProgressBar loading("loading");
  options.progress = loading.callback();
  MORACLE_TRY(Model model, bench::load_random(shape, scheme, arguments.layers,
                                              memory / 2 - engine.cache_bytes, options));
  loading.clear();
  serve::ServedModel served{.name = arguments.name.empty() ? arguments.shape : arguments.name,
                            .tokenizer = std::move(tokenizer)};
  served.no_chat = "random weights have none";
  served.generation.sampling = shape.sampling;
  // Omit the checkpoint's sizes: random weights have none.
  ModelPlan choices;
  choices.choices = model.choices();
  served.explanation = one_line({{"model_shape", arguments.shape},
                                 {"layers", arguments.layers},
                                 {"choices", considered(choices)["choices"]}});
  return ServedWeights{std::move(served), std::move(model)};
}

// Only rank 0 decides and logs. Dispatched ranks count their own tokens.
Status set_rebalance(const ServeArguments& arguments, ModelOptions& options,
                     serve::RebalanceOptions& rebalance) {
  if (rebalance.interval == 0) return {};
  if (!arguments.adapters.empty() || !arguments.adapter_folder.empty()) {
    return Error{ErrorKind::kUnsupported, "", "--rebalance-interval", "a model without adapters",
                 "--lora or --adapter-folder is given"};
  }
  rebalance.num_redundant_experts = arguments.model.ranks.redundant_experts;
  options.count_routing = is_first_rank() || options.spread == Spread::kDispatched;
  rebalance.log = [](const std::string& line) { errors() << line << std::endl; };
  return {};
}

}  // namespace
}  // namespace serve_verb

Result<ServedWeights> load_served(const ServeArguments& arguments, serve::EngineOptions& engine,
                                  RoutingFile& routing) {
  if (arguments.model.folder.empty() && arguments.shape.empty()) {
    return Error{ErrorKind::kInvalidArgument, "", "MODEL", "a folder, or --model-shape",
                 "both are missing"};
  }
  if (arguments.model.ranks.given() && !arguments.shape.empty()) {
    return Error{ErrorKind::kUnsupported, "", "--parallel", "a MODEL",
                 "random weights (--model-shape) are served by one process"};
  }
  MORACLE_TRY(ModelOptions options, arguments.model.options());
  if (options.weights != WeightResidency::kPacked && !arguments.shape.empty()) {
    return Error{ErrorKind::kUnsupported, "", "--weights",
                 "a MODEL, or a --scheme with folded weights, such as fp8-w8a8-g128-token",
                 "--model-shape has random weights"};
  }
  if (!arguments.shape.empty()) MORACLE_CHECK(check_random_activations(options.activations));
  MORACLE_CHECK(arguments.model.join(options));
  options.max_num_tokens = arguments.step_tokens;
  MORACLE_CHECK(routing.begin(options));
  MORACLE_CHECK(serve_verb::set_rebalance(arguments, options, engine.rebalance));
  return arguments.shape.empty()
             ? serve_verb::load_checkpoint(arguments, std::move(options), engine)
             : serve_verb::load_shape(arguments, std::move(options), engine);
}

namespace serve_verb {
namespace {

// Memory of a model with its KV cache, from its plan.
Result<int64_t> bytes_of(const ServeArguments& arguments, ModelOptions options,
                         const serve::EngineOptions& engine) {
  MORACLE_TRY(const Checkpoint checkpoint, Checkpoint::open(arguments.model.folder));
  MORACLE_CHECK(arguments.speculation.add_to(options, checkpoint));
  MORACLE_TRY(const ModelPlan whole, plan(checkpoint, options));
  MORACLE_TRY(const Outline outlined, outline(checkpoint));
  const int64_t cache = engine.cache_bytes > 0
                            ? engine.cache_bytes
                            : default_cache_bytes(whole, outlined.max_context, engine.max_running,
                                                  options.device_memory, arguments.model_memory);
  // On a CPU prefixes that leave the KV cache stay in the same memory.
  const int64_t kept = options.device.platform == Platform::kCpu ? engine.cache_ram : 0;
  return whole.total_bytes() + cache + kept;
}

}  // namespace
}  // namespace serve_verb

Result<std::vector<serve::ModelSource>> model_sources(const ServeArguments& arguments,
                                                      const serve::RunningOptions& running) {
  MORACLE_TRY(ModelOptions options, arguments.model.options());
  options.max_num_tokens = arguments.step_tokens;
  std::vector<serve::ModelSource> sources;
  for (const std::string& pair : arguments.models) {
    const size_t at = pair.find('=');
    if (at == 0 || at == std::string::npos || at + 1 == pair.size()) {
      return Error{ErrorKind::kInvalidArgument, "", "--model", "NAME=DIR", "it is " + quote(pair)};
    }
    ServeArguments one = arguments;
    one.name = pair.substr(0, at);
    one.model.folder = pair.substr(at + 1);
    // Report wrong folders at the start.
    MORACLE_CHECK(Checkpoint::open(one.model.folder));
    sources.push_back(
        {.name = one.name,
         .bytes = [one, options,
                   engine = running.engine] { return serve_verb::bytes_of(one, options, engine); },
         .load = [one, options, running](
                     const std::function<bool()>& is_cancelled) -> Result<serve::LoadedWeights> {
           serve::RunningOptions own = running;
           MORACLE_TRY(ServedWeights loaded,
                       serve_verb::load_checkpoint(one, options, own.engine, is_cancelled));
           return serve::LoadedWeights{std::move(loaded.served), std::move(loaded.model), own};
         }});
  }
  return sources;
}

}  // namespace moracle::cli
