#if defined(MORACLE_WITH_NCCL)
#include "parallel/cuda/nccl_communicator.h"

#include <cuda_runtime_api.h>

#include <future>

#include "base/text.h"
#include "base/try.h"
#include "parallel/connect.h"

namespace moracle::nccl {
namespace {

// Rank 0 sends its unique id and the version of its NCCL.
struct Invitation {
  int version = 0;
  ncclResult_t made = ncclSuccess;
  ncclUniqueId id{};
};

Error ncclError(const Api& api, ncclResult_t result, const char* call, ncclComm_t comm) {
  const std::string_view text = call;
  std::string fact = str(name(result), ": ", api.ncclGetErrorString(result));
  const char* const more = api.ncclGetLastError(comm);
  if (more != nullptr && *more != '\0') fact += str(" (", more, ")");
  for (char& c : fact) {
    if (c == '\n') c = ' ';
  }
  return {ErrorKind::kIo, "", "exchange 'nccl'", str(text.substr(0, text.find('(')), " to succeed"),
          std::move(fact)};
}

Result<ncclUniqueId> invite(const Api& api, Group& group) {
  Invitation invitation;
  if (group.rank() == 0) {
    invitation.version = api.version;
    invitation.made = api.ncclGetUniqueId(&invitation.id);
  }
  MORACLE_CHECK(group.broadcast(std::as_writable_bytes(std::span(&invitation, 1)), 0));
  if (invitation.made != ncclSuccess)
    return ncclError(api, invitation.made, "ncclGetUniqueId on rank 0", nullptr);
  if (invitation.version == api.version) return invitation.id;
  return Error{ErrorKind::kUnsupported, "", str("rank ", group.rank()),
               str("NCCL ", version_text(invitation.version), ", as rank 0"),
               str("it has NCCL ", version_text(api.version))};
}

}  // namespace

void end_in_time(std::function<void()> end, double seconds) {
  int device = 0;
  static_cast<void>(cudaGetDevice(&device));
  auto ended = std::make_shared<std::promise<void>>();
  std::future<void> wait = ended->get_future();
  std::thread([device, ended, end = std::move(end)] {
    static_cast<void>(cudaSetDevice(device));
    end();
    ended->set_value();
  }).detach();
  if (seconds > 0) wait.wait_for(std::chrono::duration<double>(seconds));
}

Communicator::Communicator(std::shared_ptr<Group> group)
    : api_(*api()),
      group_(std::move(group)),
      watch_(std::make_shared<RankWatch>(
          "nccl", group_, [this] { return found(); }, [this] { abort(); })) {}

Result<std::unique_ptr<Communicator>> Communicator::open(const std::shared_ptr<Group>& group) {
  const Result<Api>& library = api();
  if (!library) return library.error();
  MORACLE_TRY(const ncclUniqueId id, invite(*library, *group));
  std::unique_ptr<Communicator> made(new Communicator(group));
  // Calls on a communicator that does not block take 45 µs longer: NCCL starts a thread for each.
  const auto comm = std::make_shared<ncclComm_t>();
  const auto size = static_cast<int>(group->size()), rank = static_cast<int>(group->rank());
  MORACLE_CHECK(made->run_watched("ncclCommInitRank", [&api = *library, comm, size, rank, id] {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    return api.ncclCommInitRankConfig(comm.get(), size, id, rank, &config);
  }));
  made->comm_ = *comm;
  return made;
}

Result<std::unique_ptr<Communicator>> Communicator::adopt(const std::shared_ptr<Group>& group,
                                                          int device, ncclComm_t comm) {
  const Result<Api>& library = api();
  if (!library) return library.error();
  std::unique_ptr<Communicator> made(new Communicator(group));
  made->comm_ = comm;
  made->owned_ = false;
  int size = 0, rank = 0, gpu = 0;
  const auto ask = [&](ncclResult_t result, const char* call) {
    return result == ncclSuccess ? Status() : ncclError(*library, result, call, comm);
  };
  MORACLE_CHECK(ask(library->ncclCommCount(comm, &size), "ncclCommCount"));
  MORACLE_CHECK(ask(library->ncclCommUserRank(comm, &rank), "ncclCommUserRank"));
  MORACLE_CHECK(ask(library->ncclCommCuDevice(comm, &gpu), "ncclCommCuDevice"));
  if (size == group->size() && rank == group->rank() && gpu == device) return made;
  return Error{ErrorKind::kInvalidArgument, "", "communicator",
               str("rank ", group->rank(), " of ", group->size(), " on cuda:", device,
                   ", as the group and the device"),
               str("it is rank ", rank, " of ", size, " on cuda:", gpu)};
}

Error Communicator::failed(ncclResult_t result, const char* call) const {
  return ncclError(api_, result, call, comm_);
}

Status Communicator::found() const {
  if (aborted_ || comm_ == nullptr) return {};
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = api_.ncclCommGetAsyncError(comm_, &state);
  if (asked != ncclSuccess) return failed(asked, "ncclCommGetAsyncError");
  if (state == ncclSuccess || state == ncclInProgress) return {};
  return failed(state, "its work in progress");
}

Status Communicator::run_watched(const char* name, std::function<ncclResult_t()> call) {
  int device = 0;
  static_cast<void>(cudaGetDevice(&device));
  auto result = std::make_shared<std::promise<ncclResult_t>>();
  std::future<ncclResult_t> ended = result->get_future();
  std::thread([device, result, call = std::move(call)] {
    static_cast<void>(cudaSetDevice(device));
    result->set_value(call());
  }).detach();
  for (const Deadline waited(0);
       ended.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready;) {
    if (Status looked = watch_->look(waited.waited()); !looked) {
      watch_->stop();
      // `call` may refer to the caller's variables.
      ended.wait_for(std::chrono::duration<double>(kLongestEnd));
      return looked;
    }
  }
  const ncclResult_t code = ended.get();
  return code == ncclSuccess ? Status() : watch_->fail(failed(code, name));
}

Status Communicator::enqueue(const char* name, size_t kind,
                             const std::function<ncclResult_t()>& call) {
  MORACLE_CHECK(watch_->status());
  if (!connected_.emplace(name, kind).second) {
    const ncclResult_t code = call();
    return code == ncclSuccess ? Status() : watch_->fail(failed(code, name));
  }
  return run_watched(name, call);
}

void Communicator::abort() {
  if (aborted_ || !owned_ || comm_ == nullptr) return;
  aborted_ = true;
  end_in_time([comm = comm_, abort = api_.ncclCommAbort] { static_cast<void>(abort(comm)); }, 0);
}

Communicator::~Communicator() {
  if (aborted_ || !owned_ || comm_ == nullptr) return;
  end_in_time([comm = comm_, &api = api_] {
    const ncclResult_t state = api.ncclCommFinalize(comm);
    static_cast<void>(state == ncclSuccess ? api.ncclCommDestroy(comm) : api.ncclCommAbort(comm));
  });
}

}  // namespace moracle::nccl
#endif
