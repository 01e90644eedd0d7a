// Process setup for the verbs: signals, closed streams, uncaught exceptions.
#pragma once

namespace moracle::cli {

/// Installs handlers that count Ctrl-C and SIGTERM. Writes to a closed pipe or beyond a limit
/// return errors.
void catch_signals();

/// From now on Ctrl-C stops an answer, not the process: interrupted() is true until
/// forget_ctrl_c(). Four in a row kill the process. SIGTERM is unchanged.
void let_ctrl_c_stop_answers();
/// Returns true if Ctrl-C was pressed since the last call.
bool forget_ctrl_c();

/// Opens standard streams that are closed at the start, so that reads and writes fail. Otherwise
/// the next opened file would reuse a stream's descriptor and receive its output.
void fill_closed_streams();

/// Runs `work` and returns its exit code. An uncaught exception of any thread becomes one line on
/// stderr and exit code 1.
int run_guarded(int (*work)(int argc, char** argv), int argc, char** argv);

}  // namespace moracle::cli
