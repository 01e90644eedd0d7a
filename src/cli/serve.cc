// moracle serve: answers requests over HTTP, with OpenAI's interface.
#include "serve/server.h"

#include <chrono>
#include <filesystem>
#include <iostream>
#include <thread>

#include "base/small_file.h"
#include "command.h"
#include "model_options.h"
#include "plan_text.h"
#include "terminal.h"

namespace moracle::cli {
namespace serve_verb {
namespace {

struct Options {
  ModelArguments model;
  serve::ServerOptions server;
  std::string name, api_key_file, adapter_folder;
  std::vector<std::string> adapters;  // NAME=DIR
  int64_t step_tokens = 0;
  double drain_seconds = 30;
  bool no_prefix_cache = false;
};

// Splits NAME=DIR. Errors: no name, no folder, a name in use.
Status add_adapters(const std::vector<std::string>& pairs, ModelOptions& options,
                    serve::ServedModel& served) {
  for (const std::string& pair : pairs) {
    const size_t at = pair.find('=');
    if (at == 0 || at == std::string::npos || at + 1 == pair.size()) {
      return Error{ErrorKind::kInvalidArgument, "", "--lora", "NAME=DIR", "it is " + quote(pair)};
    }
    const std::string name = pair.substr(0, at);
    if (name == served.name) {
      return Error{ErrorKind::kInvalidArgument, "", "--lora", "another name than the model's",
                   "it is " + quote(name)};
    }
    MORACLE_CHECK(served.adapters->add(name, pair.substr(at + 1)));
    options.adapters.push_back(pair.substr(at + 1));
  }
  return {};
}

// Every sequence with the whole context, within half of the memory that the model leaves free.
int64_t default_cache_bytes(const ModelPlan& plan, int64_t max_context, int64_t max_running) {
  constexpr int64_t kLongestPage = 512;  // a page may be partly used
  const int64_t all = (max_context + kLongestPage) * max_running * plan.cache_bytes_per_token;
  return std::min(all, std::max<int64_t>((plan.memory_bytes - plan.total_bytes()) / 2, 0));
}

// The plan, and all candidates with their reasons.
std::string explanation(const ModelPlan& plan) {
  Json json = to_json(plan);
  for (size_t i = 0; i < plan.choices.size(); ++i)
    json["choices"][i]["considered"] = considered_json(plan.choices[i].selection);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<std::string> read_key(const std::string& file) {
  auto text = read_small_file(file);
  if (!text) return text.error();
  while (!text->empty() && static_cast<unsigned char>(text->back()) <= ' ') text->pop_back();
  if (text->empty()) return Error{ErrorKind::kBadFile, file, "", "a key", "it is empty"};
  return text;
}

int run(const Options& given) {
  // Report errors in the request before loading anything.
  if (Status there = serve::HttpServer::available(); !there) return fail(there.error());
  Options options = given;
  if (!options.api_key_file.empty()) {
    CLI_TRY(options.server.api.api_key, read_key(options.api_key_file));
  }
  CLI_TRY(const Checkpoint checkpoint, Checkpoint::open(options.model.folder));
  CLI_TRY(serve::ServedModel served, serve::ServedModel::open(checkpoint));
  served.name = options.name;
  if (served.name.empty())
    served.name = std::filesystem::weakly_canonical(options.model.folder).filename().string();
  CLI_TRY(ModelOptions model_options, options.model.options());
  served.adapters = std::make_shared<serve::Adapters>(options.adapter_folder);
  if (Status added = add_adapters(options.adapters, model_options, served); !added)
    return fail(added.error());
  model_options.max_num_tokens = options.step_tokens;
  CLI_TRY(const ModelPlan whole, plan(checkpoint, model_options));
  served.explanation = explanation(whole);
  CLI_TRY(const Outline outlined, outline(checkpoint));
  serve::EngineOptions& engine = options.server.engine;
  engine.prefix_cache = !options.no_prefix_cache;
  if (engine.cache_bytes == 0) {
    engine.cache_bytes = default_cache_bytes(whole, outlined.max_context, engine.max_running);
  }
  model_options.cache_bytes = engine.cache_bytes;
  served.options = model_options;

  ProgressBar loading("loading");
  model_options.progress = loading.callback();
  CLI_TRY(Model model, Model::load(checkpoint, model_options));
  loading.clear();
  CLI_TRY(std::unique_ptr<serve::Server> server,
          serve::Server::start(model, std::move(served), options.server));
  const std::string& host = options.server.http.host;
  std::cout << "listening on http://" << (host.find(':') == host.npos ? host : "[" + host + "]")
            << ":" << server->port() << std::endl;
  if (!std::cout) return fail_output();
  while (!interrupted()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  std::cerr << "finishing the running requests (at most " << rounded(options.drain_seconds)
            << " s; again: stop at once)\n";
  const bool drained = server->drain(options.drain_seconds);
  server.reset();
  return drained ? kDone : kFailed;
}

void add_server_options(CLI::App& verb, Options& options) {
  serve::HttpOptions& http = options.server.http;
  serve::ApiOptions& api = options.server.api;
  verb.add_option("--host", http.host, "Address to listen on; 0.0.0.0: all networks")
      ->capture_default_str();
  verb.add_option("--port", http.port, "Port; 0: any free port")
      ->transform(whole<int64_t>(0, 65535))
      ->capture_default_str();
  verb.add_option("--name", options.name, "Name of the model in requests; default: its folder");
  verb.add_option("--api-key-file", options.api_key_file,
                  "File with the key that requests must send (Authorization: Bearer)");
  verb.add_option("--allow-origin", api.allowed_origin,
                  "Origin of another web page whose scripts may use this server");
  verb.add_option("--request-seconds", api.request_seconds, "Time limit of a request; 0: none")
      ->transform(number(0, 1e9))
      ->capture_default_str();
  verb.add_option("--drain-seconds", options.drain_seconds,
                  "Time that running requests get at the end (Ctrl-C, SIGTERM)")
      ->transform(number(0, 1e9))
      ->capture_default_str();
  verb.add_option("--max-connections", http.max_connections, "Connections at the same time")
      ->transform(whole(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  verb.add_option("--max-body", http.max_body, "Bytes of a request's body")
      ->transform(whole(int64_t{1024}, int64_t{1} << 26))
      ->capture_default_str();
}

void add_engine_options(CLI::App& verb, Options& options) {
  serve::EngineOptions& engine = options.server.engine;
  verb.add_option("--max-sequences", engine.max_running, "Sequences that share a step")
      ->transform(whole(int64_t{1}, int64_t{4096}))
      ->capture_default_str();
  verb.add_option("--max-waiting", engine.max_waiting,
                  "Sequences in the queue; more get status 429")
      ->transform(whole(int64_t{0}, int64_t{1} << 20))
      ->capture_default_str();
  verb.add_option("--cache-bytes", engine.cache_bytes,
                  "Memory for keys and values; 0: the whole context for every sequence, or half of "
                  "the memory that the model leaves")
      ->transform(whole(int64_t{0}, int64_t{1} << 50))
      ->capture_default_str();
  verb.add_option("--step-tokens", options.step_tokens,
                  "Tokens per step at most; 0: 4096 on an NVIDIA GPU, else 512")
      ->transform(whole(int64_t{0}, int64_t{1} << 20))
      ->capture_default_str();
  verb.add_option(
          "--step-seconds", engine.step_seconds,
          "Aim at this time for steps with prompts, by measurement; 0: always --step-tokens")
      ->transform(number(0, 1e6))
      ->capture_default_str();
  verb.add_flag("--no-prefix-cache", options.no_prefix_cache,
                "Compute every prompt anew, even if its beginning is in the cache");
}

}  // namespace
}  // namespace serve_verb

void add_serve(CLI::App& app, Work& chosen) {
  add_verb(
      app, "serve", "Answer requests over HTTP, with OpenAI's interface",
      [](CLI::App& verb) -> Work {
        auto options = std::make_shared<serve_verb::Options>();
        options->model.add_to(verb);
        for (const char* of_run : {"--lora", "--json"}) verb.remove_option(verb.get_option(of_run));
        verb.add_option("--lora", options->adapters,
                        "NAME=DIR: requests for the model NAME use the LoRA adapter in DIR; may be "
                        "repeated")
            ->allow_extra_args(false);
        verb.add_option("--adapter-folder", options->adapter_folder,
                        "Folder from which requests may load adapters (/v1/load_lora_adapter)");
        serve_verb::add_server_options(verb, *options);
        serve_verb::add_engine_options(verb, *options);
        return [options] { return serve_verb::run(*options); };
      },
      chosen);
}

}  // namespace moracle::cli
