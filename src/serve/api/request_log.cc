#include "serve/api/request_log.h"

#include <ctime>
#include <mutex>

namespace moracle::serve {
namespace {

using LogClock = std::chrono::steady_clock;

// "2026-01-31T12:00:00.123Z"
std::string time_now() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[40], all[48];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(all, sizeof all, "%s.%03dZ", text, static_cast<int>(milliseconds));
  return all;
}

// JSON as it is; other text as a string.
Json content_json(const std::string& text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_discarded() ? Json(text) : json;
}

Json line_head(const HttpRequest& request) {
  return {{"time", time_now()}, {"method", request.method}, {"path", request.path}};
}

// "response_format" for "response_format.json_schema.schema.properties.name": the names that follow
// the body's field may come from the client.
std::string field_of_body(const std::string& place) {
  return place.substr(0, place.find_first_of(".["));
}

// Messages of errors may quote the request, so a log without contents has only their code.
void add_error(const HttpReply& reply, Json& line) {
  if (reply.status < 400) return;
  const Json body = Json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
  if (!body.is_object() || !body.contains("error") || !body["error"].is_object()) return;
  const Json& error = body["error"];
  for (const char* key : {"type", "code", "param"}) {
    if (error.contains(key) && error[key].is_string())
      line[std::string("error_") + key] = field_of_body(error[key].get<std::string>());
  }
}

class LoggedExchange : public Exchange {
 public:
  LoggedExchange(const LogOptions& options, const HttpRequest& request,
                 std::shared_ptr<Exchange> exchange)
      : options_(options), exchange_(std::move(exchange)), line_(line_head(request)) {
    if (options_.has_contents) line_["request"] = content_json(request.body);
  }
  ~LoggedExchange() override { finish(0); }

  void reply(HttpReply reply) override {
    {
      const std::lock_guard lock(mutex_);
      add_error(reply, line_);
      if (options_.has_contents) line_["reply"] = content_json(reply.body);
    }
    finish(reply.status);
    exchange_->reply(std::move(reply));
  }
  void start_stream(HttpReply head) override {
    {
      const std::lock_guard lock(mutex_);
      stream_status_ = head.status;
      line_["first_seconds"] = seconds();
    }
    exchange_->start_stream(std::move(head));
  }
  void write(std::string text) override {
    if (options_.has_contents) {
      const std::lock_guard lock(mutex_);
      if (streamed_.size() < kMaxStreamed) streamed_ += text;
    }
    exchange_->write(std::move(text));
  }
  void end() override {
    finish(stream_status_);
    exchange_->end();
  }
  void on_leave(std::function<void()> left) override { exchange_->on_leave(std::move(left)); }
  bool left() const override { return exchange_->left(); }
  void post(std::function<void()> work) override { exchange_->post(std::move(work)); }
  void log(const std::string& key, std::string json) override {
    const std::lock_guard lock(mutex_);
    line_[key] = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  }

 private:
  static constexpr size_t kMaxStreamed = 1 << 20;
  double seconds() const { return std::chrono::duration<double>(LogClock::now() - start_).count(); }
  // `status` 0: the client disconnected.
  void finish(int status) {
    std::string line;
    {
      const std::lock_guard lock(mutex_);
      if (is_finished_) return;
      is_finished_ = true;
      line_["status"] = status == 0 ? Json() : Json(status);
      line_["seconds"] = seconds();
      if (!streamed_.empty()) line_["events"] = std::move(streamed_);
      line = dump(line_);
    }
    options_.write(line);
  }

  const LogOptions options_;  // a copy: the exchange may outlive the API
  const std::shared_ptr<Exchange> exchange_;
  const LogClock::time_point start_ = LogClock::now();
  std::mutex mutex_;  // guards the members below
  Json line_;
  std::string streamed_;  // events, up to kMaxStreamed
  int stream_status_ = 0;
  bool is_finished_ = false;
};

}  // namespace

void log_request(const LogOptions& options, const HttpRequest& request, const HttpReply& reply) {
  if (!options.write) return;
  Json line = line_head(request);
  add_error(reply, line);
  line["status"] = reply.status;
  options.write(dump(line));
}

std::shared_ptr<Exchange> make_logged(const LogOptions& options, const HttpRequest& request,
                                      std::shared_ptr<Exchange> exchange) {
  if (!options.write) return exchange;
  return std::make_shared<LoggedExchange>(options, request, std::move(exchange));
}

}  // namespace moracle::serve
