// An exchange that forwards every call, for tests that override one of them.
#pragma once

#include <memory>

#include "moracle/parallel.h"

namespace moracle::testing {

class InnerExchange : public Exchange {
 public:
  explicit InnerExchange(std::unique_ptr<Exchange> inner) : inner_(std::move(inner)) {}
  Status all_reduce(const Matrix& x, Stream stream) override {
    return inner_->all_reduce(x, stream);
  }
  using Exchange::all_gather;
  Status all_gather(const void* mine, size_t bytes, void* all, Stream stream) override {
    return inner_->all_gather(mine, bytes, all, stream);
  }
  Status reduce_scatter(const Matrix& all, const Matrix& mine, Stream stream) override {
    return inner_->reduce_scatter(all, mine, stream);
  }
  Status exchange(std::span<const Group::Block> send, std::span<const Group::Block> receive,
                  Stream stream) override {
    return inner_->exchange(send, receive, stream);
  }

 private:
  std::unique_ptr<Exchange> inner_;
};

}  // namespace moracle::testing
