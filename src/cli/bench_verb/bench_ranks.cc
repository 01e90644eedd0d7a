// moracle bench --parallel without a model: layers with an exchange between ranks, or the exchange
// alone (--exchange-bytes).
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "base/text.h"
#include "bench/dispatched.h"
#include "bench/exchange.h"
#include "bench_verb/bench.h"
#include "options/model_options.h"
#include "terminal.h"

namespace moracle::cli {
namespace bench_ranks {
namespace {

struct RowTimes {
  std::string row;
  std::vector<bench::ExchangeTime> times;
};

Json to_json(const std::vector<RowTimes>& rows) {
  Json all = Json::array();
  for (const RowTimes& row : rows) {
    for (const bench::ExchangeTime& time : row.times) {
      Json cell{{"exchange", row.row},
                {"operation", time.operation},
                {"bytes", time.bytes},
                {"us", time.us}};
      if (time.us_replayed > 0) cell["us_replayed"] = time.us_replayed;
      all.push_back(std::move(cell));
    }
  }
  return all;
}

std::string describe(const std::vector<RowTimes>& rows) {
  std::ostringstream out;
  out << std::left << std::setw(11) << "exchange" << std::setw(16) << "operation" << std::right
      << std::setw(12) << "bytes" << std::setw(12) << "us" << std::setw(12) << "in graphs"
      << "\n"
      << std::fixed << std::setprecision(1);
  for (const RowTimes& row : rows) {
    for (const bench::ExchangeTime& time : row.times) {
      out << std::left << std::setw(11) << row.row << std::setw(16) << time.operation << std::right
          << std::setw(12) << time.bytes << std::setw(12) << time.us << std::setw(12);
      if (time.us_replayed > 0)
        out << time.us_replayed << "\n";
      else
        out << "-"
            << "\n";
    }
  }
  return out.str();
}

// The requested row, or every row that serves.
std::vector<const ExchangeRow*> rows_of(const ExchangeRow* requested, const Group& group,
                                        const Device& device) {
  if (requested != nullptr) return {requested};
  std::vector<const ExchangeRow*> rows;
  for (const ExchangeRow& row : exchanges()) {
    const bool one_host = group.options().local_size == group.size();
    if (select_exchange({device.platform(), group.size(), &row, one_host}).chosen)
      rows.push_back(&row);
  }
  return rows;
}

// Times of one shape in one scheme.
struct LayerTimes {
  std::string shape, scheme, backend;
  std::vector<bench::DispatchedTime> times;
};

Json to_json(const std::vector<LayerTimes>& layers) {
  Json all = Json::array();
  for (const LayerTimes& layer : layers) {
    for (const bench::DispatchedTime& time : layer.times) {
      Json cell{{"shape", layer.shape},
                {"scheme", layer.scheme},
                {"backend", layer.backend},
                {"tokens", time.num_tokens},
                {"us_gathered", time.us_gathered},
                {"us_counted", time.us_counted},
                {"sent_bytes", time.sent_bytes}};
      if (time.us_replayed > 0) cell["us_replayed"] = time.us_replayed;
      all.push_back(std::move(cell));
    }
  }
  return all;
}

std::string describe(const std::vector<LayerTimes>& layers) {
  std::ostringstream out;
  out << "us per layer; tokens and sent bytes are those of one rank\n"
      << std::left << std::setw(16) << "shape" << std::setw(22) << "scheme" << std::setw(12)
      << "backend" << std::right << std::setw(8) << "tokens" << std::setw(11) << "gathered"
      << std::setw(11) << "in graphs" << std::setw(11) << "counted" << std::setw(12) << "bytes"
      << "\n"
      << std::fixed << std::setprecision(1);
  for (const LayerTimes& layer : layers) {
    for (const bench::DispatchedTime& time : layer.times) {
      out << std::left << std::setw(16) << layer.shape << std::setw(22) << layer.scheme
          << std::setw(12) << layer.backend << std::right << std::setw(8) << time.num_tokens
          << std::setw(11) << time.us_gathered;
      out << std::setw(11);
      time.us_replayed > 0 ? out << time.us_replayed : out << "-";
      out << std::setw(11) << time.us_counted << std::setw(12) << time.sent_bytes << "\n";
    }
  }
  return out.str();
}

int time_exchanges(const BenchOptions& options, const ModelOptions& joined,
                   const std::shared_ptr<Group>& group, const std::shared_ptr<Device>& device) {
  std::vector<RowTimes> rows;
  for (const ExchangeRow* const row : rows_of(joined.exchange, *group, *device)) {
    CLI_TRY(const std::unique_ptr<Exchange> exchange, open_exchange(group, device, row));
    CLI_TRY(std::vector<bench::ExchangeTime> times,
            bench::time_exchange(*exchange, *group, *device, options.exchange_bytes));
    rows.push_back({std::string(row->name), std::move(times)});
  }
  if (options.json)
    print(to_json(rows));
  else
    std::cout << describe(rows);
  return kDone;
}

int time_layers(const BenchOptions& options, const RankLayers& wanted, const ModelOptions& joined,
                const std::shared_ptr<Group>& group, const std::shared_ptr<Device>& device) {
  CLI_TRY(std::unique_ptr<Exchange> opened, open_exchange(group, device, joined.exchange));
  const std::shared_ptr<Exchange> exchange = std::move(opened);
  const Machine machine = Machine::here();
  const DeviceName& on = joined.device;
  CLI_TRY(Parallelism parallel, options.ranks.planned());
  parallel.ep_rank = group->rank();
  std::vector<LayerTimes> layers;
  for (const bench::LayerShape& shape : wanted.shapes) {
    for (const Scheme& scheme : wanted.schemes) {
      Request request;
      request.layer = bench::layer_of(shape, scheme);
      request.max_num_tokens =
          *std::max_element(wanted.tokens.begin(), wanted.tokens.end()) * group->size();
      request.platform = on.platform;
      if (on.platform != Platform::kCpu) request.device_index = on.index;
      request.backend = options.backend;
      request.parallel = parallel;
      bench::DispatchedLayers timed{select(request, machine), group, exchange, device};
      if (!timed.selection.plan) return fail(timed.selection.chosen().error());
      CLI_TRY(std::vector<bench::DispatchedTime> times,
              bench::time_dispatched(timed, wanted.tokens));
      layers.push_back({shape.name, name(scheme), std::string(name(*timed.selection.plan->backend)),
                        std::move(times)});
    }
  }
  if (options.json)
    print(to_json(layers));
  else
    std::cout << describe(layers);
  return kDone;
}

}  // namespace
}  // namespace bench_ranks

int run_rank_bench(const BenchOptions& options, const RankLayers& wanted) {
  ModelOptions joined;
  CLI_TRY(joined.device, parse_device(options.device));
  joined.threads = options.threads;
  if (Status status = options.ranks.join(joined, options.device); !status)
    return fail(status.error());
  std::shared_ptr<Group> group = joined.group;
  if (group == nullptr) {
    CLI_TRY(group, open_group({}));
  }
  CLI_TRY(const std::shared_ptr<Device> device,
          open_device(joined.device,
                      device_options(joined.device, joined.threads, options.pin, options.json)));
  return options.exchange_bytes.empty()
             ? bench_ranks::time_layers(options, wanted, joined, group, device)
             : bench_ranks::time_exchanges(options, joined, group, device);
}

}  // namespace moracle::cli
