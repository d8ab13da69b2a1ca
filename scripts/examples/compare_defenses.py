# %% [markdown]
# # Which defense holds, and what does it cost?
#
# A comparison is a matrix of methods, defenses and seeds; every entry is a run of its own. It is resumed when it is
# called again, so this can be stopped at any time. Run it as a program, or open it as a notebook.

# %%
from app import build_run, compare, report

# %% [markdown]
# ## One run, put together from recipes
#
# The names are those of `rampart list recipes`; options have the names that they have on the command line.

# %%
run = build_run("overfitted", "memdefense", tracking="disabled", **{"trainer.max_epochs": 2, "run.name": "one"})
print(run)
run.fit()
print("accuracy of every client:", run.results[0].numbers["mean"])

# %% [markdown]
# ## A comparison

# %%
made = compare(
    {
        "name": "defenses",
        "base": "overfitted",
        "datasets": ["digits"],
        "methods": ["fedavg"],
        "defenses": ["none", "memdefense"],
        "attacks": "membership",
        "seeds": [0, 1],
        "set": {
            "trainer.max_epochs": 2,
            "attacks.membership.attacks": ["yeom"],
            "attacks.membership.shadows.count": 2,
            "attacks.membership.controls": "skip",
            "tracking": "disabled",
        },
    }
)
print(made.to_pandas().T)

# %% [markdown]
# ## The report
#
# One HTML page that needs nothing else, with tables as files beside it; any folders of runs can be reported together.

# %%
page = report("runs/defenses", "runs/one", output="runs/report.html")
print(page.path, len(page.store.runs), "runs")
