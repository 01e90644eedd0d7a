// moracle serve: an HTTP server with the APIs of OpenAI and Anthropic.
#include "serve/server.h"

#include <chrono>
#include <iostream>
#include <mutex>
#include <thread>

#include "base/small_file.h"
#include "base/text.h"
#include "command.h"
#include "ranks/ranks.h"
#include "serve/engine/ranks/follow.h"
#include "serve_model.h"
#include "terminal.h"

namespace moracle::cli {
namespace serve_verb {
namespace {

struct Options {
  ServeArguments model;
  serve::ServerOptions server;
  std::string api_key_file, routing_statistics;
  std::string log;  // empty: none
  double drain_seconds = 30;
  bool no_prefix_cache = false;
};

Result<std::string> read_key(const std::string& file) {
  auto text = read_small_file(file);
  if (!text) return text.error();
  while (!text->empty() && static_cast<unsigned char>(text->back()) <= ' ') text->pop_back();
  if (text->empty()) return Error{ErrorKind::kBadFile, file, "", "a key", "it is empty"};
  return text;
}

// Keep serving briefly, so that pending requests receive the error.
int end_without_rank(std::unique_ptr<serve::Server> server, const Error& lost) {
  std::this_thread::sleep_for(std::chrono::seconds(1));
  server.reset();
  return fail(lost);
}

// Lines of the log on stdout, behind the address.
void write_line(const std::string& line) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::cout << line << std::endl;
}

int serve_until_signal(std::unique_ptr<serve::Server> server, const Options& options) {
  const serve::HttpOptions& http = options.server.http;
  const std::string& host = http.host;
  write_line(str("listening on ", http.tls_cert.empty() ? "http" : "https", "://",
                 host.find(':') == host.npos ? host : "[" + host + "]", ":", server->port()));
  if (!std::cout) return fail_output();
  while (!interrupted() && !server->failure())
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  if (const auto lost = server->failure()) return end_without_rank(std::move(server), *lost);
  std::cerr << "finishing the running requests (at most " << rounded(options.drain_seconds)
            << " s; again: stop at once)\n";
  const bool drained = server->drain(options.drain_seconds);
  if (const auto lost = server->failure()) return end_without_rank(std::move(server), *lost);
  return drained ? kDone : kFailed;
}

int run(const Options& given) {
  // Report invalid options before loading.
  if (Status there = serve::HttpServer::available(); !there) return fail(there.error());
  if (Status files = serve::HttpServer::check_tls(given.server.http); !files)
    return fail(files.error());
  if (const std::string& origin = given.server.api.allowed_origin; !origin.empty()) {
    if (Status checked = serve::check_origin(origin); !checked) return fail(checked.error());
  }
  Options options = given;
  if (!options.api_key_file.empty()) {
    CLI_TRY(options.server.api.api_key, read_key(options.api_key_file));
  }
  options.server.engine.prefix_cache = !options.no_prefix_cache;
  CLI_TRY(options.server.engine.speculation, options.model.speculation.parsed());
  options.model.model.ranks.moves_experts = options.server.engine.rebalance.interval > 0;
  if (!options.log.empty()) {
    options.server.api.log = {.write = write_line, .has_contents = options.log == "contents"};
  }
  options.server.model_memory = options.model.model_memory;
  RoutingFile routing(options.routing_statistics);
  if (!options.model.models.empty()) {
    CLI_TRY(std::vector<serve::ModelSource> sources,
            model_sources(options.model, {options.server.grammar_folder, options.server.engine}));
    CLI_TRY(std::unique_ptr<serve::Server> server,
            serve::Server::start(std::move(sources), options.server));
    return serve_until_signal(std::move(server), options);
  }
  CLI_TRY(ServedWeights loaded, load_served(options.model, options.server.engine, routing));
  if (!is_first_rank()) {  // ignore Ctrl-C and SIGTERM, which launchers send to all: rank 0 stops
                           // this rank
    const serve::ServedModel& served = loaded.served;
    const Status done = serve::follow(loaded.model, served.folder, served.options);
    return done ? kDone : fail(done.error());
  }
  CLI_TRY(std::unique_ptr<serve::Server> server,
          serve::Server::start(loaded.model, std::move(loaded.served), options.server));
  const int code = serve_until_signal(std::move(server), options);
  if (Status written = routing.write(loaded.model); !written) return fail(written.error());
  return code;
}

void add_server_options(CLI::App& verb, Options& options) {
  serve::HttpOptions& http = options.server.http;
  serve::ApiOptions& api = options.server.api;
  verb.add_option("--host", http.host, "Address to listen on; 0.0.0.0: all networks")
      ->capture_default_str();
  verb.add_option("--port", http.port, "Port; 0: any free port")
      ->transform(whole<int64_t>(0, 65535))
      ->capture_default_str();
  verb.add_option("--name", options.model.name,
                  "Name of the model in requests; default: its folder");
  verb.add_option("--api-key-file", options.api_key_file,
                  "File with the key that requests must send (Authorization: Bearer)");
  verb.add_option("--allow-origin", api.allowed_origin,
                  "Origin of another web page whose scripts may use this server");
  verb.add_option("--tls-cert", http.tls_cert,
                  "File with the certificate chain in PEM: serve HTTPS instead of HTTP");
  verb.add_option("--tls-key", http.tls_key, "File with the key of --tls-cert in PEM");
  verb.add_flag("--log-requests{fields}", options.log,
                "Write a line of JSON to stdout for each request; =contents: with the texts of "
                "requests and replies")
      ->check(CLI::IsMember({"fields", "contents"}));
  verb.add_option("--request-seconds", api.request_seconds, "Time limit of a request; 0: none")
      ->transform(number(0, 1e9))
      ->capture_default_str();
  verb.add_option("--drain-seconds", options.drain_seconds,
                  "Time for running requests to finish at shutdown (Ctrl-C, SIGTERM)")
      ->transform(number(0, 1e9))
      ->capture_default_str();
  verb.add_option("--max-connections", http.max_connections, "Maximum number of connections")
      ->transform(whole(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  verb.add_option("--max-body", http.max_body, "Maximum bytes of a request body")
      ->transform(whole(int64_t{1024}, int64_t{1} << 26))
      ->capture_default_str();
}

void add_engine_options(CLI::App& verb, Options& options) {
  serve::EngineOptions& engine = options.server.engine;
  verb.add_option("--max-sequences", engine.max_running, "Maximum number of sequences per step")
      ->transform(whole(int64_t{1}, int64_t{4096}))
      ->capture_default_str();
  verb.add_option("--max-waiting", engine.max_waiting,
                  "Queue limit in sequences; beyond it status 429")
      ->transform(whole(int64_t{0}, int64_t{1} << 20))
      ->capture_default_str();
  verb.add_option("--cache-bytes", engine.cache_bytes,
                  "Size of the KV cache; 0: the whole context for every sequence, at most half of "
                  "the memory that the model leaves")
      ->transform(whole(int64_t{0}, int64_t{1} << 50))
      ->capture_default_str();
  verb.add_option("--cache-ram", engine.cache_ram,
                  "Bytes of host memory for prefixes that leave the KV cache; they return when a "
                  "prompt begins with them; 0: none")
      ->transform(whole(int64_t{0}, int64_t{1} << 50))
      ->capture_default_str();
  verb.add_option("--step-tokens", options.model.step_tokens,
                  "Token limit of a step; 0: 4096 on an NVIDIA GPU, else 512")
      ->transform(whole(int64_t{0}, int64_t{1} << 20))
      ->capture_default_str();
  verb.add_option("--step-seconds", engine.step_seconds,
                  "Chunked prefill: target time of a step with prompts; 0: always --step-tokens")
      ->transform(number(0, 1e6))
      ->capture_default_str();
  verb.add_option(
          "--rebalance-interval", engine.rebalance.interval,
          "Steps between two rebalances of experts over the ranks, by measured load; 0: off")
      ->needs(verb.get_option("--parallel"))
      ->excludes(verb.get_option("--model-shape"))
      ->transform(whole(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  verb.add_option("--grammar-engine", options.server.grammar_folder,
                  "Folder with the Python packages xgrammar and tvm_ffi, for response_format; "
                  "default: where the build found them");
  options.model.speculation.add_to(verb);
  verb.add_flag("--no-prefix-cache", options.no_prefix_cache,
                "Disable the prefix cache: compute every prompt from its start")
      ->excludes(verb.get_option("--cache-ram"));
}

void add_model_options(CLI::App& verb, ServeArguments& options) {
  options.model.add_to(verb);
  for (const char* of_run : {"--lora", "--json"}) verb.remove_option(verb.get_option(of_run));
  CLI::Option* const folder = verb.get_option("MODEL")->required(false);
  CLI::Option* const lora =
      verb.add_option("--lora", options.adapters,
                      "NAME=DIR: requests for the model NAME use the LoRA adapter in DIR; may be "
                      "repeated")
          ->allow_extra_args(false);
  CLI::Option* const adapters =
      verb.add_option("--adapter-folder", options.adapter_folder,
                      "Folder from which requests may load adapters (/v1/load_lora_adapter)");
  CLI::Option* const models =
      verb.add_option("--model", options.models,
                      "Instead of MODEL, NAME=DIR: a model that is loaded at its first use; may be "
                      "repeated, and requests without a name get the first")
          ->allow_extra_args(false)
          ->excludes(folder)
          ->excludes(lora)
          ->excludes(adapters)
          ->excludes(verb.get_option("--parallel"));
  verb.add_option("--model-memory", options.model_memory,
                  "With --model: bytes of the loaded models together, with their caches; beyond "
                  "it the least recently used ones are unloaded; 0: no limit")
      ->needs(models)
      ->transform(whole(int64_t{0}, int64_t{1} << 50))
      ->capture_default_str();
  CLI::Option* const shape =
      verb.add_option("--model-shape", options.shape,
                      "Instead of MODEL: random weights of this shape, for load tests")
          ->excludes(folder)
          ->excludes(lora)
          ->excludes(adapters)
          ->excludes(models);
  verb.add_option("--scheme", options.scheme, "With --model-shape: scheme of the weights")
      ->needs(shape)
      ->capture_default_str();
  verb.add_option("--tokenizer", options.tokenizer,
                  "With --model-shape: folder with a tokenizer; without it tokens are numbers")
      ->needs(shape);
  verb.add_option("--layers", options.layers, "With --model-shape: number of layers to build")
      ->needs(shape)
      ->transform(whole(int64_t{1}, int64_t{1} << 10))
      ->capture_default_str();
}

}  // namespace
}  // namespace serve_verb

void add_serve(CLI::App& app, Work& chosen) {
  add_verb(
      app, "serve", "Answer requests over HTTP, with the APIs of OpenAI and Anthropic",
      [](CLI::App& verb) -> Work {
        auto options = std::make_shared<serve_verb::Options>();
        serve_verb::add_model_options(verb, options->model);
        serve_verb::add_server_options(verb, *options);
        serve_verb::add_engine_options(verb, *options);
        verb.add_option("--routing-statistics", options->routing_statistics, kRoutingHelp)
            ->excludes(verb.get_option("--model-shape"))
            ->excludes(verb.get_option("--model"));
        return [options] { return serve_verb::run(*options); };
      },
      chosen);
}

}  // namespace moracle::cli
