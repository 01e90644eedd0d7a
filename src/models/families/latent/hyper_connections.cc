#include "models/families/latent/hyper_connections.h"

#include "base/text.h"
#include "base/try.h"
#include "kernels/ops.h"

namespace moracle {
namespace hyper_connections {
namespace {

Result<HyperDescription> describe(const Checkpoint& checkpoint, const std::string& prefix,
                                  const DecoderSpec& decoder, int64_t rows, int64_t scales) {
  const int64_t columns = decoder.num_streams * decoder.hidden_size;
  MORACLE_TRY(auto projection, checkpoint.floats(prefix + "fn", {rows, columns}));
  MORACLE_TRY(auto base, checkpoint.vector(prefix + "base", rows));
  MORACLE_TRY(auto scale, checkpoint.vector(prefix + "scale", scales));
  return HyperDescription{std::move(projection), std::move(base), std::move(scale)};
}

}  // namespace
}  // namespace hyper_connections

Status read_hyper_connections(const Config& config, DecoderSpec& decoder) {
  MORACLE_TRY(decoder.num_streams, config.integer({"hc_mult"}, 2, 16));
  MORACLE_TRY(decoder.sinkhorn_iterations, config.integer({"hc_sinkhorn_iters"}, 1, 1000));
  MORACLE_TRY(const double epsilon, config.number({"hc_eps"}));
  if (!(epsilon >= 0 && epsilon < 1))
    return config.wrong({"hc_eps"}, "a number from 0 to 1", str("it is ", epsilon));
  decoder.hyper_epsilon = static_cast<float>(epsilon);
  return {};
}

Result<HyperDescription> describe_hyper_connection(const Checkpoint& checkpoint,
                                                   const std::string& prefix,
                                                   const DecoderSpec& decoder) {
  const int64_t streams = decoder.num_streams;
  return hyper_connections::describe(checkpoint, prefix, decoder, streams + hyper_floats(streams),
                                     3);
}

Result<HyperDescription> describe_input_weights(const Checkpoint& checkpoint,
                                                const std::string& prefix,
                                                const DecoderSpec& decoder) {
  return hyper_connections::describe(checkpoint, prefix, decoder, decoder.num_streams, 1);
}

}  // namespace moracle
