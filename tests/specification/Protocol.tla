------------------------------ MODULE Protocol ------------------------------
\* The commit protocol of one stream in append mode: partitions of a log, writers, a table with notes, and what
\* lies beside the table. docs/protocol.md explains it, and lists what is left out.
\*
\* There is no lock here. A writer may sleep anywhere, as long as it likes, while another one works: so every lease
\* may be lost at any moment, and nobody notices. What others see at once is one step; between two steps a writer may
\* die. A request that arrives late is a writer that sleeps before it, and dies behind it.
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
    Writers, Partitions,
    Kinds,       \* of records: "good", and "bad", which cannot be applied
    MaxLog,      \* records that a partition holds at once
    MaxBatch,    \* records of a batch
    MaxCommits,  \* commits of the table
    MaxCuts,     \* how often a partition may lose its end
    Jobs,        \* what writers do
    Wrong        \* the mistakes of a wrong protocol; none in ours

VARIABLES
    log,         \* by partition: its records, each with a kind, and the life of the log it is of
    cuts,        \* by partition: the lengths to which it was cut; how many there are is its life
    commits,     \* the table's log: notes, each with the rows of the table behind it
    files,       \* what lies in the folder of the side table, whether or not a commit names it
    quarantine,  \* the rows of the side table
    projected,   \* its fence: the highest seq that has put a file into it
    ledger,      \* the seqs that have a row there
    writers

outside == <<log, cuts>>
beside == <<files, quarantine, projected, ledger>>
vars == <<outside, commits, beside, writers>>

Has(mistake) == mistake \in Wrong
Max(numbers) == CHOOSE n \in numbers : \A m \in numbers : m <= n
Min(numbers) == CHOOSE n \in numbers : \A m \in numbers : n <= m
RECURSIVE Sum(_, _)
Sum(of, names) == IF names = {} THEN 0
                  ELSE LET name == CHOOSE each \in names : TRUE IN of[name] + Sum(of, names \ {name})

Empty == [p \in Partitions |-> <<>>]
Origin == [p \in Partitions |-> 0]
\* Seq 0 opens the table. `next` has the next offsets of each epoch, `last` the last record read of each partition.
Opening == [kind |-> "schema", seq |-> 0, next |-> <<Origin>>, last |-> Empty, rows |-> {}]
Note(n) == IF n = 0 THEN Opening ELSE commits[n]
Newest == Len(commits)
Idle == [step |-> "idle"]

Init == /\ log = Empty /\ cuts = Empty /\ commits = <<>>
        /\ files = {} /\ quarantine = {} /\ projected = 0 /\ ledger = {}
        /\ writers = [w \in Writers |-> Idle]

(**************************************** The log of Kafka ****************************************)

Produce(p, kind) ==
    /\ Len(log[p]) < MaxLog
    /\ log' = [log EXCEPT ![p] = Append(@, [kind |-> kind, life |-> Len(cuts[p])])]
    /\ UNCHANGED <<cuts, commits, beside, writers>>

\* It loses its end, and may grow again. Cut to nothing, it is a topic that was made again.
Cut(p, length) ==
    /\ length < Len(log[p]) /\ Len(cuts[p]) < MaxCuts
    /\ log' = [log EXCEPT ![p] = SubSeq(@, 1, length)]
    /\ cuts' = [cuts EXCEPT ![p] = Append(@, length)]
    /\ UNCHANGED <<commits, beside, writers>>

(************************************ How every writer begins ************************************)

Epoch(me) == Len(me.next)
Reached(me, p) == me.next[Epoch(me)][p]
Holds(p, n, record) == Len(log[p]) >= n /\ log[p][n] = record

\* The last record that was read of a partition is not at its place any more.
IsCut(me) == \E p \in Partitions : me.last[p] # <<>> /\ ~Holds(p, Reached(me, p), me.last[p][1])

Order == IF Has("ledger_before_the_projection") THEN <<"ledger", "project">> ELSE <<"project", "ledger">>

\* It takes its position from the newest note, and ends what dead writers have left.
Start(w) ==
    LET lacking == IF Has("heal_omitted") THEN {} ELSE (1..Newest) \ ledger
        known == Note(IF Has("offsets_apart") THEN Max(ledger \union {0}) ELSE Newest)
    IN /\ writers[w] = Idle
       /\ writers' = [writers EXCEPT ![w] =
           [step |-> IF lacking = {} THEN "begin" ELSE Order[1], todo |-> lacking, base |-> Newest,
            next |-> known.next, last |-> known.last, read |-> Empty, note |-> Opening, old |-> {}]]
       /\ UNCHANGED <<outside, commits, beside>>

\* It dies, or gives up. What it has written stays.
Die(w) == /\ writers[w] # Idle
          /\ writers' = [writers EXCEPT ![w] = Idle]
          /\ UNCHANGED <<outside, commits, beside>>

(********************************* What it does before its commit *********************************)

Ready(w, job) == job \in Jobs /\ writers[w].step = "begin" /\ Newest < MaxCommits

\* A note that changes nothing; a job says more.
Bare(w, kind) ==
    LET me == writers[w] IN
    [kind |-> kind, seq |-> me.base + 1, by |-> w, base |-> me.base, start |-> me.next, next |-> me.next,
     last |-> me.last, added |-> {}, bad |-> {}, sent |-> {}, side |-> {}, to |-> 0]

ToCommit(w, note) == writers' = [writers EXCEPT ![w].step = "commit", ![w].note = note]

Row(at, note) ==
    [epoch |-> at.epoch, partition |-> at.partition, offset |-> at.offset, life |-> at.life,
     seq |-> note.seq, by |-> note.by]

\* A record in quarantine, and the redrive that has sent it in; what is put there again is there twice.
Waiting(at, note) ==
    [epoch |-> at.epoch, partition |-> at.partition, offset |-> at.offset, life |-> at.life,
     seq |-> note.seq, mark |-> 0, copy |-> 1]
With(rows) == quarantine \union rows \union {[row EXCEPT !.copy = 2] : row \in quarantine \intersect rows}
Marked(rows, sent, seq) == (rows \ sent) \union {[row EXCEPT !.mark = seq] : row \in sent}

\* Write a file beside the table. No log names it; the note does.
Beside(w, note, rows) ==
    LET file == [seq |-> note.seq, by |-> w, rows |-> rows]
        isEarly == Has("projected_before_the_commit") /\ note.kind = "ingest"
    IN /\ files' = IF rows = {} THEN files ELSE files \union {file}
       /\ quarantine' = IF isEarly THEN With(rows) ELSE quarantine
       /\ ledger' = IF Has("ledger_before_commit") THEN ledger \union {note.seq} ELSE ledger
       /\ ToCommit(w, IF rows = {} \/ Has("files_not_named") THEN note ELSE [note EXCEPT !.side = {file}])
       /\ UNCHANGED <<outside, commits, projected>>

BeginToRead(w) ==
    /\ Ready(w, "ingest")
    /\ Has("last_records_not_looked_for") \/ ~IsCut(writers[w])
    /\ writers' = [writers EXCEPT ![w].step = "read"]
    /\ UNCHANGED <<outside, commits, beside>>

Read(w, p) ==
    LET me == writers[w] IN
    /\ me.step = "read"
    /\ Sum([q \in Partitions |-> Len(me.read[q])], Partitions) < MaxBatch
    /\ Reached(me, p) + Len(me.read[p]) < Len(log[p])
    /\ writers' = [writers EXCEPT ![w].read[p] = Append(@, log[p][Reached(me, p) + Len(@) + 1])]
    /\ UNCHANGED <<outside, commits, beside>>

\* The log has been cut behind the start, so that two logs may have been read as one.
IsCutMeanwhile(me) ==
    IsCut(me) \/ \E p \in Partitions : \E i \in 1..Len(me.read[p]) : ~Holds(p, Reached(me, p) + i, me.read[p][i])

Ingest(w) ==
    LET me == writers[w]
        note == Bare(w, "ingest")
        At(p, i) == [epoch |-> Epoch(me), partition |-> p, offset |-> Reached(me, p) + i - 1,
                     life |-> me.read[p][i].life]
        Of(kind, p) == {At(p, i) : i \in {j \in 1..Len(me.read[p]) : me.read[p][j].kind = kind}}
        good == UNION {Of("good", p) : p \in Partitions}
        bad == {Waiting(at, note) : at \in UNION {Of("bad", p) : p \in Partitions}}
        next == [p \in Partitions |-> Reached(me, p) + Len(me.read[p])]
        last == [p \in Partitions |-> LET read == me.read[p] IN
                                      IF read = <<>> THEN me.last[p] ELSE <<read[Len(read)]>>]
    IN /\ me.step = "read" /\ me.read # Empty
       /\ \/ Has("last_records_not_looked_for") \/ Has("cuts_looked_for_only_at_the_start")
          \/ ~IsCutMeanwhile(me)
       /\ Beside(w, [note EXCEPT !.next[Epoch(me)] = next, !.last = last, !.added = good, !.bad = bad], bad)

\* All that waits of an epoch, by a declaration that finds it good. No offset moves.
Redrive(w, epoch) ==
    LET sent == {row \in quarantine : row.mark = 0 /\ row.epoch = epoch} IN
    /\ Ready(w, "redrive") /\ sent # {}
    /\ Beside(w, [Bare(w, "redrive") EXCEPT !.sent = sent, !.added = sent], sent)

\* To a batch of this epoch that no rewind has undone.
Rewind(w, to) ==
    LET me == writers[w] IN
    /\ Ready(w, "rewind") /\ to < me.base /\ Len(Note(to).next) = Epoch(me)
    /\ Has("rewind_to_an_undone_batch")
       \/ \A n \in to + 1..me.base : commits[n].kind = "rewind" => commits[n].to >= to
    /\ ToCommit(w, [Bare(w, "rewind") EXCEPT !.next = Note(to).next, !.last = Note(to).last, !.to = to])
    /\ UNCHANGED <<outside, commits, beside>>

\* A person decides that a log which was cut is read from its start, in a new epoch.
Adopt(w) ==
    /\ Ready(w, "adopt") /\ IsCut(writers[w])
    /\ ToCommit(w, [Bare(w, "accept") EXCEPT !.next = Append(@, Origin), !.last = Empty])
    /\ UNCHANGED <<outside, commits, beside>>

\* Of a key without rows: what matters here is which files it removes, and when.
Erase(w) ==
    /\ Ready(w, "erase")
    /\ writers' = [writers EXCEPT ![w].step = "commit", ![w].note = Bare(w, "erase"), ![w].old = files]
    /\ files' = IF Has("files_removed_before_the_commit") THEN {} ELSE files
    /\ UNCHANGED <<outside, commits, quarantine, projected, ledger>>

(************************************* The commit, and behind it *************************************)

\* Rows and note in one act, on exactly the version that was looked at. It may be refused; it may be lost; it may be
\* made, and its answer lost: the writer learns it from the log.
Commit(w) ==
    LET note == writers[w].note
        rows == IF note.kind = "rewind" THEN Note(note.to).rows
                ELSE Note(Newest).rows \union {Row(at, note) : at \in note.added}
    IN /\ writers[w].step = "commit"
       /\ \/ /\ note.base = Newest \/ Has("no_txn_fence")
             /\ Newest < MaxCommits
             /\ commits' = Append(commits, note @@ [rows |-> rows])
          \/ UNCHANGED commits
       /\ writers' = [writers EXCEPT ![w].step = "look"]
       /\ UNCHANGED <<outside, beside>>

Look(w) ==
    LET me == writers[w]
        made == {n \in 1..Newest : commits[n].by = w /\ commits[n].seq = me.note.seq}
    IN /\ me.step = "look"
       /\ writers' = [writers EXCEPT ![w] =
              IF Has("unknown_taken_for_failed")
              THEN [me EXCEPT !.step = "commit", !.note.seq = Newest + 1, !.note.base = Newest]
              ELSE IF made = {} THEN Idle
              ELSE [step |-> Order[1], todo |-> {Max(made)}, note |-> me.note, old |-> me.old]]
       /\ UNCHANGED <<outside, commits, beside>>

\* What comes next, once a writer has done a part of the oldest commit on its list.
Go(w, done) ==
    LET me == writers[w]
        later == [me EXCEPT !.step = Order[1], !.todo = @ \ {Min(@)}]
    IN writers' = [writers EXCEPT ![w] =
           IF done = Order[1] THEN [me EXCEPT !.step = Order[2]] ELSE IF later.todo # {} THEN later
           ELSE IF me.note = Opening THEN [later EXCEPT !.step = "begin"]
           ELSE IF me.note.kind = "erase" THEN [later EXCEPT !.step = "clean"] ELSE Idle]

\* The side table follows a commit; to do that again changes nothing.
Project(w) ==
    LET n == Min(writers[w].todo)
        note == commits[n]
        isUndone(seq) == note.kind = "rewind" /\ note.to < seq /\ (seq < n \/ Has("rewind_undoes_what_follows"))
        kept == {row \in quarantine : Has("rewind_leaves_the_side_tables") \/ ~isUndone(row.seq)}
        isForgotten(mark) == isUndone(mark) /\ ~Has("rewind_leaves_the_marks")
        left == {[row EXCEPT !.mark = IF isForgotten(@) THEN 0 ELSE @] : row \in kept}
        named == IF Has("every_file_projected") THEN {file \in files : file.seq = n} ELSE note.side \intersect files
        rows == UNION {file.rows : file \in named}
        isDue == named # {} /\ (projected < n \/ Has("projected_again"))
    IN /\ writers[w].step = "project"
       /\ quarantine' = IF ~isDue THEN left ELSE IF note.kind # "redrive" THEN With(rows)
                        ELSE Marked(quarantine, rows \intersect quarantine, n)
       /\ projected' = IF isDue THEN n ELSE projected
       /\ Go(w, "project")
       /\ UNCHANGED <<outside, commits, files, ledger>>

\* What is in the ledger is projected.
Enter(w) == /\ writers[w].step = "ledger"
            /\ ledger' = ledger \union {Min(writers[w].todo)}
            /\ Go(w, "ledger")
            /\ UNCHANGED <<outside, commits, files, quarantine, projected>>

\* An erase removes what lay there before its commit, and no log names: nobody can commit that any more.
Clean(w) ==
    LET old == IF Has("erase_lists_behind_its_commit") THEN files ELSE writers[w].old
        isKept(file) == ~Has("named_files_removed")
                        /\ \E n \in 1..Newest : n <= projected /\ file \in commits[n].side
    IN
    /\ writers[w].step = "clean"
    /\ files' = {file \in files : file \notin old \/ isKept(file)}
    /\ writers' = [writers EXCEPT ![w] = Idle]
    /\ UNCHANGED <<outside, commits, quarantine, projected, ledger>>

LoseLedger == /\ "lose the ledger" \in Jobs /\ ledger' = {}
              /\ UNCHANGED <<outside, commits, files, quarantine, projected, writers>>

Next ==
    \/ \E p \in Partitions : \/ \E kind \in Kinds : Produce(p, kind)
                             \/ \E length \in 0..MaxLog - 1 : Cut(p, length)
    \/ \E w \in Writers : \/ Start(w) \/ Die(w) \/ BeginToRead(w) \/ (\E p \in Partitions : Read(w, p)) \/ Ingest(w)
                          \/ (\E epoch \in 1..MaxCommits : Redrive(w, epoch))
                          \/ (\E to \in 0..MaxCommits : Rewind(w, to))
                          \/ Adopt(w) \/ Erase(w) \/ Commit(w) \/ Look(w) \/ Project(w) \/ Enter(w) \/ Clean(w)
    \/ LoseLedger

Spec == Init /\ [][Next]_vars
Symmetry == Permutations(Writers) \union Permutations(Partitions)

(******************************************** Invariants ********************************************)

\* What the commits up to one say must be in quarantine: by records, not by files.
RECURSIVE Due(_)
Due(n) == IF n = 0 THEN {}
          ELSE CASE commits[n].kind = "ingest" -> Due(n - 1) \union commits[n].bad
                 [] commits[n].kind = "redrive" -> Marked(Due(n - 1), commits[n].sent, n)
                 [] commits[n].kind = "rewind" -> Due(commits[n].to)
                 [] OTHER -> Due(n - 1)

\* The newest commit may not be projected yet, as long as the ledger lacks it.
Before == IF Newest = 0 \/ Newest \in ledger THEN Due(Newest) ELSE Due(Newest - 1)

\* Each record below the next offset is a row, or waits in quarantine, and is so once; no other one is there.
EachRecordOnce ==
    LET note == Note(Newest)
        At(places, e, p, o) == {at \in places : at.epoch = e /\ at.partition = p /\ at.offset = o}
        waiting == {row \in Due(Newest) : row.mark = 0}
    IN \A e \in 1..Epoch(note), p \in Partitions, o \in 0..MaxLog :
        Cardinality(At(note.rows, e, p, o)) + Cardinality(At(waiting, e, p, o)) = IF o < note.next[e][p] THEN 1 ELSE 0

\* The offsets that a batch moves = the rows with its seq + those of the file that it names.
BooksBalance ==
    LET note == Note(Newest)
        offsets == Sum(note.next[Epoch(note)], Partitions) - Sum(note.start[Epoch(note)], Partitions)
        rows == Cardinality({row \in note.rows : row.seq = note.seq /\ row.by = note.by})
        named == Cardinality(UNION {file.rows : file \in note.side})
    IN /\ note.kind = "ingest" => offsets = rows + named
       /\ note.kind = "redrive" => rows = named

OffsetsContiguous == Newest > 0 => Note(Newest).start = Note(Newest - 1).next

\* The files that commits name stay: before they are projected, and behind that as the table's own.
NoSideRowLost == /\ (Before \intersect Due(Newest)) \subseteq quarantine
                 /\ \A n \in 1..Newest : commits[n].side \subseteq files

NoSideRowInvented == quarantine \subseteq (Before \union Due(Newest))

\* Once the rewind is in the ledger. Rows and offsets go back by the definition of Commit and Rewind.
RewindReturnsSideRows == Note(Newest).kind = "rewind" /\ Newest \in ledger => quarantine = Due(Note(Newest).to)

\* What was read in one epoch is of one log: no record that was cut off stands before one that came later.
OneLogPerEpoch ==
    LET places == Note(Newest).rows \union Due(Newest) IN
    \A a \in places, b \in places :
        a.epoch = b.epoch /\ a.partition = b.partition /\ a.offset < b.offset =>
            a.life <= b.life /\ \A life \in a.life + 1..b.life : cuts[a.partition][life] > a.offset

\* What is in the ledger is committed, and its file is in the side table.
LedgerFollows == \A n \in ledger : n <= Newest /\ (commits[n].side = {} \/ n <= projected)
=============================================================================
