// Keeps responses for previous_response_id, in bounded memory and for a bounded time.
#pragma once

#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

namespace moracle::serve {

/// A response and its conversation, as JSON texts.
struct StoredResponse {
  std::string items;      ///< all input and output items, an array
  std::string reply;      ///< the response
  size_t num_inputs = 0;  ///< the first items, which are input
};

/// Thread-safe.
class ResponseStore {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kMaxBytes = 64u << 20;
  static constexpr std::chrono::seconds kLifetime{3600};

  explicit ResponseStore(size_t max_bytes = kMaxBytes, Clock::duration lifetime = kLifetime)
      : max_bytes_(max_bytes), lifetime_(lifetime) {}

  /// Adds a response, and evicts the least recently used ones beyond the limit. A response above
  /// the limit is not kept.
  void add(const std::string& id, StoredResponse response, Clock::time_point now = Clock::now());
  /// False: unknown, expired or evicted.
  bool remove(const std::string& id, Clock::time_point now = Clock::now());
  /// Null: unknown, expired or evicted.
  std::shared_ptr<const StoredResponse> find(const std::string& id,
                                             Clock::time_point now = Clock::now()) const;
  size_t num_bytes() const;

 private:
  struct Entry {
    std::string id;
    std::shared_ptr<const StoredResponse> response;
    size_t bytes;
    Clock::time_point used;
  };
  void erase(std::list<Entry>::iterator entry) const;

  const size_t max_bytes_;
  const Clock::duration lifetime_;
  mutable std::mutex mutex_;
  mutable std::list<Entry> entries_;  // most recently used first
  mutable std::unordered_map<std::string, std::list<Entry>::iterator> by_id_;
  mutable size_t num_bytes_ = 0;
};

}  // namespace moracle::serve
