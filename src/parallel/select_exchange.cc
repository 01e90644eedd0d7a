// Selects the exchange for a machine and a number of ranks, with the reasons against the others.
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "parallel/exchange_makers.h"

namespace moracle {
namespace {

constexpr ExchangeRow kExchanges[] = {
#include "parallel/exchanges.inc"
};

std::vector<Reason> objections(const ExchangeRow& row, const ExchangeRequest& request,
                               bool other_machine) {
  std::vector<Reason> reasons;
  const auto object = [&](std::string_view rule, std::string need, std::string have) {
    reasons.push_back({rule, std::move(need), std::move(have)});
  };
  if (request.row != nullptr && request.row->name != row.name)
    object("name", std::string(row.name), str("'", request.row->name, "' is requested"));
  if (!row.any_platform && row.platform != request.platform)
    object("platform", std::string(name(row.platform)),
           str("the device is ", name(request.platform)));
  if (row.max_ranks > 0 && request.size > row.max_ranks)
    object("ranks", str(row.max_ranks == 1 ? "one rank" : str("at most ", row.max_ranks, " ranks")),
           str("there are ", request.size));
  if (row.one_host && !request.one_host)
    object("hosts", "all ranks on one host", "they are on several");
  if (row.one_host && request.num_devices > 0 && request.size > request.num_devices)
    object("devices", str("a device of one host for each of ", request.size, " ranks"),
           str("this machine has ", request.num_devices));
  if (other_machine) return reasons;
  if (row.make == nullptr) {
    object("build", std::string(row.build), "this build has none");
  } else if (row.lacks != nullptr && reasons.empty()) {
    if (std::string lacks = row.lacks(); !lacks.empty())
      object("machine", "its libraries and devices", std::move(lacks));
  }
  return reasons;
}

}  // namespace

Status Exchange::all_gather(std::span<const Gathered> gathered, Stream stream) {
  for (const Gathered& one : gathered)
    MORACLE_CHECK(all_gather(one.mine, one.bytes, one.all, stream));
  return {};
}

Status Exchange::combine_scatter(const ExpertRows&, const RowOrder&, const Matrix&, Stream) {
  return Error{ErrorKind::kUnsupported, "", str("exchange '", name(), "'"),
               "Ops::combine and reduce_scatter, one after another", "it does not fuse them"};
}

std::span<const ExchangeRow> exchanges() {
  return kExchanges;
}

Result<const ExchangeRow*> parse_exchange(std::string_view name) {
  if (name == "auto") return nullptr;
  std::vector<std::string_view> known{"auto"};
  for (const ExchangeRow& row : kExchanges) {
    if (row.name == name) return &row;
    known.push_back(row.name);
  }
  return Error{ErrorKind::kInvalidArgument, "", "exchange", "one of " + join(known),
               str("'", name, "' is unknown")};
}

ExchangeSelection select_exchange(const ExchangeRequest& request, bool other_machine) {
  ExchangeSelection selection;
  for (const ExchangeRow& row : kExchanges) {
    selection.considered.push_back({&row, objections(row, request, other_machine)});
    if (selection.chosen == nullptr && selection.considered.back().reasons.empty())
      selection.chosen = &row;
  }
  return selection;
}

std::string explain(const ExchangeSelection& selection) {
  size_t width = 0;
  for (const ExchangeVerdict& verdict : selection.considered)
    width = std::max(width, verdict.row->name.size());
  std::string text;
  for (const ExchangeVerdict& verdict : selection.considered) {
    std::string cell(verdict.row->name);
    cell.resize(width, ' ');
    text += str(verdict.row == selection.chosen ? "> " : "  ", cell);
    if (verdict.reasons.empty()) text += str("  yes  ", verdict.row->summary);
    for (size_t i = 0; i < verdict.reasons.size(); ++i) {
      const Reason& reason = verdict.reasons[i];
      text +=
          str(i == 0 ? "  no   " : ", ", reason.rule, " needs ", reason.need, "; ", reason.have);
    }
    text += "\n";
  }
  return text;
}

Result<std::unique_ptr<Exchange>> open_exchange(const std::shared_ptr<Group>& group,
                                                const std::shared_ptr<Device>& device,
                                                const ExchangeRow* row) {
  const ExchangeSelection selection = select_exchange(
      {device->platform(), group->size(), row, group->options().local_size == group->size()});
  if (selection.chosen != nullptr) return selection.chosen->make(group, device);
  std::vector<std::string> facts;
  for (const ExchangeVerdict& verdict : selection.considered)
    for (const Reason& reason : verdict.reasons)
      facts.push_back(
          str(verdict.row->name, ": ", reason.rule, " needs ", reason.need, "; ", reason.have));
  return Error{ErrorKind::kUnsupported, "", "exchange", "a way to move activations between ranks",
               join(facts, ". ")};
}

Result<std::unique_ptr<Exchange>> connect_nccl(const std::shared_ptr<Group>& group,
                                               const std::shared_ptr<Device>& device,
                                               void* communicator) {
  const auto refused = [](ErrorKind kind, std::string need, std::string fact) {
    return Error{kind, "", "communicator", std::move(need), std::move(fact)};
  };
  if (device->platform() != Platform::kCuda)
    return refused(ErrorKind::kInvalidArgument, "a CUDA device", "it is " + device->name());
  if (communicator == nullptr)
    return refused(ErrorKind::kInvalidArgument, "an ncclComm_t", "it is null");
#if defined(MORACLE_WITH_NCCL)
  return make_nccl_on(group, device, communicator);
#else
  return refused(ErrorKind::kUnsupported, "a build with preset cuda and nccl.h",
                 str("this build lacks it, for ", group->size(), " ranks"));
#endif
}

}  // namespace moracle
