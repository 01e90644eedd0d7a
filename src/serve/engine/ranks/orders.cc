#include "serve/engine/ranks/orders.h"

#include <cstring>

#include "base/try.h"

namespace moracle::serve {
namespace {

// Number of words for `bytes` bytes.
int64_t words_of(int64_t bytes) {
  return (bytes + 7) / 8;
}

}  // namespace

void OrderWriter::put(std::span<const int64_t> list) {
  put(static_cast<int64_t>(list.size()));
  words_.insert(words_.end(), list.begin(), list.end());
}

void OrderWriter::put(std::span<const int32_t> list) {
  put(static_cast<int64_t>(list.size()));
  words_.insert(words_.end(), list.begin(), list.end());
}

void OrderWriter::put(const std::string& text) {
  const auto bytes = static_cast<int64_t>(text.size());
  put(bytes);
  const size_t at = words_.size();
  words_.resize(at + words_of(bytes));
  if (bytes > 0) std::memcpy(words_.data() + at, text.data(), text.size());
}

Status OrderWriter::send(Group& group) {
  uint64_t count = words_.size();
  MORACLE_CHECK(group.broadcast(std::as_writable_bytes(std::span(&count, 1)), 0, true));
  MORACLE_CHECK(group.broadcast(std::as_writable_bytes(std::span(words_)), 0));
  words_.clear();
  return {};
}

Result<OrderReader> OrderReader::receive(Group& group) {
  OrderReader reader;
  uint64_t count = 0;
  MORACLE_CHECK(group.broadcast(std::as_writable_bytes(std::span(&count, 1)), 0, true));
  reader.words_.resize(count);
  MORACLE_CHECK(group.broadcast(std::as_writable_bytes(std::span(reader.words_)), 0));
  return reader;
}

std::span<const int64_t> OrderReader::take(int64_t count) {
  const size_t left = words_.size() - at_;
  if (count < 0 || static_cast<uint64_t>(count) > left) {
    is_whole_ = false;
    at_ = words_.size();
    return {};
  }
  at_ += static_cast<size_t>(count);
  return std::span(words_).subspan(at_ - static_cast<size_t>(count), static_cast<size_t>(count));
}

int64_t OrderReader::word() {
  const std::span<const int64_t> one = take(1);
  return one.empty() ? 0 : one[0];
}

std::vector<int64_t> OrderReader::list() {
  const std::span<const int64_t> words = take(word());
  return {words.begin(), words.end()};
}

std::vector<int32_t> OrderReader::ids() {
  std::vector<int32_t> ids;
  for (const int64_t id : take(word())) ids.push_back(static_cast<int32_t>(id));
  return ids;
}

std::string OrderReader::text() {
  const int64_t bytes = word();
  const std::span<const int64_t> words = take(words_of(bytes));
  if (!is_whole_ || bytes < 1) return {};
  return {reinterpret_cast<const char*>(words.data()), static_cast<size_t>(bytes)};
}

}  // namespace moracle::serve
