#include "kernels/cuda/decode/few_linear.h"

#include "kernels/cuda/decode/few_launch.h"

namespace moracle::cuda {
namespace {

class FewLinear : public GroupedLinear {
 public:
  FewLinear(std::unique_ptr<GroupedLinear> others, FewLaunch few, int64_t most_tokens)
      : others_(std::move(others)), few_(few), most_tokens_(most_tokens) {}

  // Rows that 16-byte loads cannot read run in the other kernels.
  Status run(const GroupedRows& rows, const Matrix& y, Stream stream) override {
    const Matrix& x = rows.x.values;
    const int64_t vector = weights().scheme.activation ? 16 : 8;
    const bool aligned = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % vector == 0;
    if (rows.num_rows > most_tokens_ || rows.num_rows == 0 || !aligned || x.cols % 16 != 0)
      return others_->run(rows, y, stream);
    const auto tokens = static_cast<int>(rows.num_rows);
    if (few_.serves_dense(weights(), tokens))
      return few_.run_dense(weights(), rows.x, y, slots_of(tokens), stream);
    return few_.run_rows(weights(), rows.x, false, y, nullptr, slots_of(tokens),
                         few_choice(tokens, 1, 1), true, stream);
  }
  bool serves_norm(const NormedInput& x) const override {
    return x.norm.x.rows <= most_tokens_ && few_.serves_norm(weights(), x);
  }
  Status run_normed(const NormedInput& x, const Matrix& y, Stream stream) override {
    if (!serves_norm(x)) return GroupedLinear::run_normed(x, y, stream);
    const auto tokens = static_cast<int>(x.norm.x.rows);
    return few_.run_normed(weights(), x, y, slots_of(tokens), stream);
  }
  Status run_dense(const Matrix& x, const Rows& scratch, const Matrix& y, Stream stream) override {
    return others_->run_dense(x, scratch, y, stream);
  }
  Status weights_replaced(Stream stream) override { return others_->weights_replaced(stream); }
  const KernelWeights& weights() const override { return others_->weights(); }

 private:
  // Each token has the one expert.
  static FewSlots slots_of(int tokens) {
    return {nullptr, nullptr, nullptr, tokens, tokens, 1, 1, 1, nullptr, nullptr};
  }

  std::unique_ptr<GroupedLinear> others_;
  FewLaunch few_;
  int64_t most_tokens_;
};

}  // namespace

Result<std::unique_ptr<GroupedLinear>> make_few_linear(std::unique_ptr<GroupedLinear> others,
                                                       int64_t most_tokens, CudaDevice& device) {
  MORACLE_TRY(const FewLaunch few, FewLaunch::make(others->weights(), device.queue()));
  return std::unique_ptr<GroupedLinear>(new FewLinear(std::move(others), few, most_tokens));
}

}  // namespace moracle::cuda
