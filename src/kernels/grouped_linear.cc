#include "kernels/grouped_linear.h"

#include <algorithm>

#include "base/text.h"

namespace moracle {
namespace {

std::string describe(const LinearCall& call) {
  constexpr const char* kInputs[] = {"rows as planned", "rows before quantization",
                                     "rows before the norm"};
  constexpr const char* kOutputs[] = {"stores its sums", "activates", "activates and quantizes",
                                      "combines the rows of each token", "routes"};
  const auto* const rows = call.from<GroupedRows>();
  return str("it reads ", rows != nullptr ? rows->num_rows : call.x().rows, " ",
             kInputs[call.input.index()], " and ", kOutputs[call.output.index()]);
}

}  // namespace

bool LinearKernel::serves(const LinearCall& call) const {
  return call.from<GroupedRows>() != nullptr && call.to<LinearCall::Store>() != nullptr;
}

LinearKernel* GroupedLinear::kernel_for(const LinearCall& call) const {
  const auto found = std::find_if(kernels_.begin(), kernels_.end(),
                                  [&](const auto& kernel) { return kernel->serves(call); });
  return found == kernels_.end() ? nullptr : found->get();
}

Status GroupedLinear::run(const LinearCall& call, Stream stream) {
  if (LinearKernel* const kernel = kernel_for(call)) return kernel->run(call, stream);
  return Error{ErrorKind::kInvalidArgument, "", "grouped linear",
               "a call that a planned kernel serves", describe(call)};
}

Status GroupedLinear::expert_replaced(int64_t e, Stream stream) {
  if (!refresh_) return {};
  const auto bytes = weights_.sections.bytes;
  const KernelWeights one{
      weights_.layout,
      weights_.scheme,
      weights_.shape,
      1,
      weights_.sections,
      Buffer(weights_.buffer.as<std::byte>() + e * static_cast<int64_t>(bytes), bytes, nullptr),
      {}};
  return refresh_(one, stream);
}

}  // namespace moracle
