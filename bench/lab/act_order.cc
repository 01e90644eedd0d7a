// Measures the cost of act-order with columns sorted at load and gathered activations: the
// experts of Qwen3-30B-A3B in int4 with groups of 128, in order and in act-order, on every row
// that serves here; the two take turns.
//
//   g++ -std=c++20 -O2 -Iinclude -Isrc bench/lab/act_order.cc build/cpu/libmoracle.a … -o act_order
//   ./act_order [cpu|cuda] [threads]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "moracle/device.h"
#include "oracle/backend.h"

namespace {

using namespace moracle;

double median_us(std::vector<double> seconds) {
  std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
  return seconds[seconds.size() / 2] * 1e6;
}

Status time_row(const Backend& row, const std::shared_ptr<Device>& device) {
  const bool gpu = row.platform != Platform::kCpu;
  std::vector<bench::LayerRing> rings;
  for (const bool act_order : {false, true}) {
    Request request{.layer = bench::layer_of(*bench::find_shape("qwen3-30b-a3b"),
                                             {int4_static_group(128), {}})};
    request.layer.group_index = act_order;
    request.max_num_tokens = 2048;
    request.backend = row.name;
    const Selection selection = select(request, Machine::here());
    auto ring = bench::LayerRing::make(selection, device, gpu ? 4LL << 30 : 1LL << 30, 8LL << 30);
    if (!ring) return ring.error();
    rings.push_back(*std::move(ring));
  }
  for (const int64_t tokens : {1, 16, 64, 256, 1024, 2048}) {
    std::vector<double> times[2];
    for (int turn = 0; turn < 3; ++turn) {
      for (int i = 0; i < 2; ++i) {
        auto some = rings[i].time(tokens, 0.2);
        if (!some) return some.error();
        times[i].insert(times[i].end(), some->begin(), some->end());
      }
    }
    const double in_order = median_us(times[0]), act_order = median_us(times[1]);
    std::printf("%-14s %5ld tokens  in order %9.1f us, act-order %9.1f us, %.2f times\n",
                std::string(row.name).c_str(), static_cast<long>(tokens), in_order, act_order,
                act_order / in_order);
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const auto device = open_device(argc > 1 ? argv[1] : "cpu", argc > 2 ? std::atoi(argv[2]) : 0);
  if (!device) return std::fprintf(stderr, "%s\n", device.error().to_string().c_str()), 1;
  for (const Backend& row : backends()) {
    if (row.platform != (*device)->platform() || row.name.ends_with("reference")) continue;
    const Status done = time_row(row, *device);
    if (!done)
      std::printf("%s: %s\n", std::string(row.name).c_str(), done.error().to_string().c_str());
  }
  return 0;
}
