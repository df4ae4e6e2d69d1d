from harness import *
from a1b import batch
import random, sys
seed=160
src=open("fuzz.py").read()
src=src.replace("a,b=int(sys.argv[1]),int(sys.argv[2])","a,b=160,161")
src=src.replace("            res=judge(net,t,x,labels)\n","            res=judge(net,t,x,labels)\n            keep=(net,t,x,y)\n")
exec(src)
net,t,x,y=keep
print(y, x[:,0])
p=net(x).softmax(-1); g=p-torch.nn.functional.one_hot(y,5); print((g.norm(dim=1)).tolist())
s=open_update(net,t,Declared()); (pr,)=read(s); print(pr.proposal.inputs[0][:3],pr.proposal.labels,pr.proposal.shares,pr.error,pr.unexplained)
G=torch.cat([t["0.weight"].float(),t["0.bias"].float()[:,None]],1); print(torch.linalg.svdvals(G)[:4])
