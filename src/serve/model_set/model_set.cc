#include "serve/model_set/model_set.h"

#include <algorithm>
#include <chrono>

#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/try.h"
#include "serve/model_set/model_metrics.h"

namespace moracle::serve {

// Keeps a model in memory.
class ModelSet::Lease {
 public:
  Lease(ModelSet& set, Entry& entry) : set_(set), entry_(entry) {}
  ~Lease() { set_.release(entry_); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

 private:
  ModelSet& set_;
  Entry& entry_;
};

// An exchange that keeps its model in memory.
class ModelSet::LeasedExchange : public Exchange {
 public:
  LeasedExchange(std::shared_ptr<Exchange> exchange, std::shared_ptr<Lease> lease)
      : lease_(std::move(lease)), exchange_(std::move(exchange)) {}
  void reply(HttpReply reply) override { exchange_->reply(std::move(reply)); }
  void start_stream(HttpReply head) override { exchange_->start_stream(std::move(head)); }
  void write(std::string text) override { exchange_->write(std::move(text)); }
  void end() override { exchange_->end(); }
  void on_leave(std::function<void()> left) override {
    exchange_->on_leave([lease = lease_, left = std::move(left)] { left(); });
  }
  bool left() const override { return exchange_->left(); }
  void post(std::function<void()> work) override { exchange_->post(std::move(work)); }
  void log(const std::string& key, std::string json) override {
    exchange_->log(key, std::move(json));
  }

 private:
  const std::shared_ptr<Lease> lease_;
  const std::shared_ptr<Exchange> exchange_;
};

void ModelSet::keep(std::unique_ptr<RunningModel> model) {
  kept_ = std::move(model);
}

void ModelSet::add(std::vector<ModelSource> sources) {
  for (ModelSource& source : sources) entries_.push_back({.source = std::move(source)});
  thread_ = std::thread([this] { run(); });
}

ModelSet::Entry* ModelSet::find(const std::string& name) {
  if (name.empty()) return &entries_.front();
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.source.name == name; });
  return found == entries_.end() ? nullptr : &*found;
}

std::shared_ptr<Exchange> ModelSet::lease(Entry& entry, std::shared_ptr<Exchange> exchange) {
  ++entry.uses;
  entry.last_use = ++clock_;
  return std::make_shared<LeasedExchange>(std::move(exchange),
                                          std::make_shared<Lease>(*this, entry));
}

void ModelSet::release(Entry& entry) {
  const std::lock_guard lock(mutex_);
  --entry.uses;
  changed_.notify_all();
}

void ModelSet::use(const std::string& name, std::shared_ptr<Exchange> exchange, ErrorForm form,
                   Work work) {
  if (kept_) return work(kept_->api(), exchange);
  std::unique_lock lock(mutex_);
  Entry* const entry = find(name);
  const auto refuse = [&](const ApiError& error) {
    lock.unlock();
    exchange->reply(to_reply(error, form));
  };
  if (!entry) {
    lock.unlock();
    return exchange->reply(to_reply(unknown_model(names()), form));
  }
  if (stopping_ || draining_)
    return refuse({.status = 503, .message = "the server is stopping", .code = "stopping"});
  if (entry->state == State::kLoaded) {
    ModelApi& api = entry->running->api();
    const std::shared_ptr<Exchange> leased = lease(*entry, std::move(exchange));
    lock.unlock();
    return work(api, leased);
  }
  if (entry->waiting.size() >= kMaxWaiting) {
    return refuse({.status = 429,
                   .message = "too many requests wait for this model to load; try again later",
                   .code = "queue_full"});
  }
  entry->waiting.push_back({std::move(exchange), form, std::move(work)});
  if (entry->state != State::kUnloaded) return;  // it is queued, or will be when it has closed
  entry->state = State::kQueued;
  queue_.push_back(entry);
  changed_.notify_all();
}

void ModelSet::run() {
  for (;;) {
    Entry* entry = nullptr;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (stopping_) return;
      entry = queue_.front();
      queue_.pop_front();
      entry->state = State::kLoading;
    }
    load(*entry);
  }
}

void ModelSet::load(Entry& entry) {
  const auto is_stopping = [this] {
    const std::lock_guard lock(mutex_);
    return stopping_;
  };
  std::unique_ptr<RunningModel> running;
  int64_t bytes = 0;
  const Status loaded = or_out_of_memory("model", [&]() -> Status {
    MORACLE_TRY(bytes, entry.source.bytes());
    MORACLE_CHECK(make_space(bytes));
    MORACLE_TRY(LoadedWeights weights, entry.source.load(is_stopping));
    entry.model.emplace(std::move(weights.model));  // its address stays
    MORACLE_TRY(running, RunningModel::start(*entry.model, std::move(weights.served),
                                             weights.options, shared_));
    return {};
  });
  if (!loaded) {
    entry.model.reset();
    const bool is_cancelled = loaded.error().kind == ErrorKind::kCancelled;
    return refuse_waiting(entry,
                          {.status = is_cancelled ? 503 : 500,
                           .message = "the model does not load: " + loaded.error().to_string(),
                           .param = "model",
                           .code = is_cancelled ? "stopping" : "model_not_loaded"});
  }
  std::vector<Waiting> waiting;
  {
    const std::lock_guard lock(mutex_);
    entry.bytes = bytes;
    entry.running = std::move(running);
    entry.state = State::kLoaded;
    waiting.swap(entry.waiting);
    for (Waiting& each : waiting) each.exchange = lease(entry, std::move(each.exchange));
  }
  for (const Waiting& each : waiting) {
    if (each.exchange->left()) continue;
    const Status done = or_out_of_memory("request", [&]() -> Status {
      each.work(entry.running->api(), each.exchange);
      return {};
    });
    if (!done)
      each.exchange->reply(
          to_reply({.status = 500, .message = "the server is out of memory"}, each.form));
  }
}

void ModelSet::refuse_waiting(Entry& entry, const ApiError& error) {
  std::vector<Waiting> waiting;
  {
    const std::lock_guard lock(mutex_);
    entry.state = State::kUnloaded;
    waiting.swap(entry.waiting);
  }
  for (const Waiting& each : waiting) each.exchange->reply(to_reply(error, each.form));
}

// Unloads models, the least recently used ones first.
Status ModelSet::make_space(int64_t bytes) {
  if (max_bytes_ > 0 && bytes > max_bytes_) {
    return Error{ErrorKind::kUnsupported, "", "model",
                 str("at most ", max_bytes_, " bytes (--model-memory)"),
                 str("it takes ", bytes, " bytes")};
  }
  std::unique_lock lock(mutex_);
  for (;;) {
    int64_t total = bytes;
    Entry* oldest = nullptr;
    for (Entry& entry : entries_) {
      if (entry.state != State::kLoaded) continue;
      total += entry.bytes;
      if (!oldest || entry.last_use < oldest->last_use) oldest = &entry;
    }
    if (max_bytes_ == 0 || total <= max_bytes_ || !oldest) return {};
    close(*oldest, lock);
    if (stopping_)
      return Error{ErrorKind::kCancelled, "", "model", "a running server", "it is stopping"};
  }
}

// Waits for the requests of a model, and frees its memory. New requests wait until it is loaded
// again.
void ModelSet::close(Entry& entry, std::unique_lock<std::mutex>& lock) {
  entry.state = State::kClosing;
  changed_.wait(lock, [&] { return stopping_ || entry.uses == 0; });
  if (stopping_) {
    entry.state = State::kLoaded;  // stop() ends it
    return;
  }
  std::unique_ptr<RunningModel> running = std::move(entry.running);
  lock.unlock();
  running.reset();
  entry.model.reset();
  lock.lock();
  entry.state = entry.waiting.empty() ? State::kUnloaded : State::kQueued;
  if (!entry.waiting.empty()) queue_.push_back(&entry);
}

Json ModelSet::describe(const std::string& name) const {
  Json data = Json::array();
  if (kept_) {
    if (!name.empty()) return kept_->api().has(name) ? kept_->api().describe(name) : Json();
    data.push_back(kept_->api().describe(kept_->served().name));
    for (const std::string& adapter : kept_->served().adapters->names())
      data.push_back(kept_->api().describe(adapter));
    return data;
  }
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_) {
    if (!name.empty() && entry.source.name != name) continue;
    Json one =
        entry.state == State::kLoaded
            ? entry.running->api().describe(entry.source.name)
            : Json{{"id", entry.source.name}, {"object", "model"}, {"created", 0},
                   {"owned_by", "moracle"},   {"parent", nullptr}, {"max_model_len", nullptr},
                   {"capabilities", nullptr}};
    one["loaded"] = entry.state == State::kLoaded;
    if (!name.empty()) return one;
    data.push_back(std::move(one));
  }
  return name.empty() ? data : Json();
}

std::string ModelSet::names() const {
  if (kept_) return kept_->served().name;
  const std::lock_guard lock(mutex_);
  std::string names;
  for (const Entry& entry : entries_) names += (names.empty() ? "" : ", ") + entry.source.name;
  return names;
}

std::string ModelSet::metrics() const {
  if (kept_) return kept_->api().metrics();
  const std::lock_guard lock(mutex_);
  ModelMetrics metrics;
  for (const Entry& entry : entries_) {
    if (entry.state == State::kLoaded)
      metrics.add(entry.source.name, entry.running->api().metrics());
  }
  return metrics.text();
}

std::string ModelSet::explanation() const {
  if (kept_) return kept_->served().explanation;
  const std::lock_guard lock(mutex_);
  std::string all;
  for (const Entry& entry : entries_) {
    if (entry.state != State::kLoaded) continue;
    all += str(all.empty() ? "" : ",", dump(entry.source.name), ":",
               entry.running->served().explanation);
  }
  return "{" + all + "}";
}

std::optional<Error> ModelSet::failure() const {
  return kept_ ? kept_->engine().failure() : std::nullopt;
}

bool ModelSet::drain(double seconds) {
  if (kept_) return kept_->engine().drain(seconds);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::unique_lock lock(mutex_);
  draining_ = true;
  return changed_.wait_until(lock, end, [&] {
    return std::all_of(entries_.begin(), entries_.end(),
                       [](const Entry& entry) { return entry.uses == 0 && entry.waiting.empty(); });
  });
}

void ModelSet::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (kept_) kept_->stop();
  for (Entry& entry : entries_) {
    if (entry.running) entry.running->stop();
    refuse_waiting(entry, {.status = 503, .message = "the server is stopping", .code = "stopping"});
  }
}

void ModelSet::clear() {
  kept_.reset();
  for (Entry& entry : entries_) {
    entry.running.reset();
    entry.model.reset();
  }
}

}  // namespace moracle::serve
