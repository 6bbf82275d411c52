#pragma once

#include "runtime/ids.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace millrace::trainer {

/// A complete checkpoint on disk, proven against its checksums when it was opened.
struct checkpoint {
  std::filesystem::path folder;
  version at;                ///< of the model in it
  std::int64_t sequence = 0; ///< grows with every save
  std::optional<double> score; ///< that it was saved with
  std::map<std::string, std::string> state; ///< what each part of the program gave to save()
};

/// Checkpoints of one run, in one folder:
///
///     000007-v12/            complete from the moment it has this name
///       manifest.json        every file with its size and XXH3 checksum (`xxhsum -H3` proves them)
///       state/NAME           what other parts gave, as it is: data cursor, ledger, …
///       …                    what the writer puts there: model/, optimizer.safetensors, …
///     latest                 the name of the newest
///
/// A save writes into a hidden folder aside, flushes every file to disk, renames the folder, and
/// only then replaces `latest` in the same way. Whatever moment the process or machine dies at,
/// either the new checkpoint is whole or the one before it is untouched. To go back to an older
/// one, write its name into `latest`. One process writes; any number may read.
class checkpoint_store {
public:
  using notice = std::function<void(const std::string&)>;

  /// `root` need not exist yet. keep_last ≥ 1; beside these, the keep_best with the highest scores
  /// are kept. `say` is told what a user should read, such as that
  /// a corrupt checkpoint was passed over.
  checkpoint_store(std::filesystem::path root, std::int32_t keep_last, notice say,
                   std::int32_t keep_best = 0);

  /// `write` fills the empty folder that it is given. `state` is bytes by name (a file's name), in
  /// whatever form; JSON where a person may want to read it. `score`: how good this version is, the
  /// more the better. Older checkpoints beyond keep_last are
  /// removed afterwards. \throws user_error when the disk is full or not writable, or whatever
  /// `write` throws; the earlier checkpoints are then untouched.
  checkpoint save(version at, const std::function<void(const std::filesystem::path&)>& write,
                  const std::map<std::string, std::string>& state,
                  std::optional<double> score = std::nullopt);

  /// A fresh folder on the checkpoints' disk, for what several processes write before it becomes
  /// part of a checkpoint. Those that an earlier process left are removed. Not to be called by two
  /// threads at a time; save() may be under way in another.
  std::filesystem::path make_aside();

  /// The one that `latest` names or, where that is torn or corrupt (said aloud), the newest that is
  /// valid. Nothing when there is no checkpoint at all. \throws user_error when there are
  /// checkpoints, but none of them is valid: to start from scratch over them is not ours to decide.
  /// `part`: a folder in it that alone is wanted, and proven.
  [[nodiscard]] std::optional<checkpoint> newest(const std::string& part = {}) const;

  /// Reads every file (of `part`, where that is given) and proves it. \throws user_error saying what
  /// is wrong with it
  [[nodiscard]] static checkpoint open(const std::filesystem::path& folder,
                                       const std::string& part = {});

  /// Folders of complete or once complete checkpoints, the newest first. Nothing is proven.
  [[nodiscard]] std::vector<std::filesystem::path> list() const;

private:
  void remove_leftovers() const;
  void remove_old() const;

  std::filesystem::path root_;
  std::int32_t keep_last_, keep_best_;
  std::int32_t asides_ = 0;
  notice say_;
};

} // namespace millrace::trainer
