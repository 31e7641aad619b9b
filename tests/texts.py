"""Plain English for tests that need running text, and prompts to continue. Written for this project."""

PASSAGES = (
    """The valley wakes before the sun reaches it. First the rooks leave the elms in twos and threes, then the
farmer's dog remembers that it has a voice, and by the time the light has climbed down from the ridge to the
roof of the mill, the first cart is already on the road to the market. Nobody hurries. The road is steep, the
mule is old, and the price of plums will be the same at nine as it was at eight. At the bridge the carter stops
to talk with the miller's wife, who tells him that the river rose again in the night and that two of the young
men have gone upstream to look at the weir. Last spring the weir gave way in just such weather, and it took the
village until midsummer to raise the money for new timbers. The carter nods, looks at the brown water, and says
what everybody says: that it will hold, because it has to. Then he clicks his tongue and the mule leans into
the harness. Behind them the mill wheel turns a little faster than it should, and the sound of it follows the
cart up the hill until the trees close over the road and there is nothing left to hear but the birds and the
creaking of the axle. In the afternoon the rain came back, and with it the two young men, wet to the waist.""",
    """A computer's memory is often described as a row of numbered boxes, each holding one small number. The
picture is useful, but it leaves out the most important thing about memory today, which is that the boxes are
not equally far away. A value in a register can be used at once. A value in the first cache takes four or five
cycles, in the second about fifteen, and a value that has to be fetched from the memory chips themselves takes
several hundred. A program that walks through its data in order hardly notices this, since the processor sees
the pattern and asks for the next line before it is needed. A program that jumps about at random spends nearly
all of its time waiting. For this reason two programs that perform exactly the same additions can differ in
speed by a factor of twenty. Engineers who care about speed therefore begin by asking how many bytes must be
moved, and only then how many operations must be done. If every byte is used only once, as when a matrix is
multiplied by a single vector, the speed of the memory decides everything, and a faster processor changes
nothing at all. If every byte is used many times, as when two large matrices are multiplied, the processor
decides. Between the two lies a line, and it is worth knowing on which side of it a program stands.""",
    """To make bread you need four things: flour, water, salt, and time. Yeast is only a way of buying time,
and a sourdough starter is a way of keeping it in a jar. Mix five hundred grams of flour with three hundred and
fifty grams of water, and leave the dough alone for half an hour before you add ten grams of salt and whatever
makes it rise. Then fold it. Wet your hand, take hold of the edge, pull it up as far as it will go without
tearing, and lay it over the middle. Turn the bowl a little and do it again, eight times in all. Do this every
half hour, four times, and between the folds do nothing, because the dough works better than you do. When it
has grown by half and trembles as you move the bowl, shape it, put it into a floured basket, and let it rest in
a cold place until the next morning. Heat the oven for as long as you can bear, with an iron pot inside. Tip
the loaf into the pot, cut it once with a sharp knife, close the lid, and bake it for twenty-five minutes. Take
off the lid and bake it again until the crust is darker than you think is wise. Then comes the hardest part of
all, which is to wait for an hour before you cut it. Most people cannot, and the bread forgives them.""",
    """In the year 1854 a doctor in London marked on a map every house in which somebody had died of cholera.
Most of his colleagues believed that the disease was carried by bad air, and there was certainly a great deal
of bad air in that part of the city. But the marks on the map did not lie where the air was worst. They lay in
the streets around a single water pump, and they became fewer with every step that people would have had to
walk to reach it. A brewery next to the pump had not lost one man; its workers drank beer, and had a well of
their own. A widow far away in the country had died of the disease as well, which seemed to contradict the
theory, until her son explained that she had liked the taste of the water from that pump, and had a bottle of
it sent to her every day. The doctor took his map to the council and asked for the handle of the pump to be
removed. They did not quite believe him, but they did as he asked. What makes the story worth telling is not
that he was right, for others have been right, but how he came to be sure: he counted, he drew, and he went
to look at the cases that did not fit. The exceptions, when he understood them, were his best evidence.""",
)

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small house at the edge of a forest, there lived",
    "def fibonacci(n):\n    ",
    "Water boils at 100 degrees Celsius because",
    "Dear Sir or Madam,\n\nI am writing to",
    "The three most important things about learning a language are:\n1.",
    "Q: What is the difference between a virus and a bacterium?\nA:",
    "In 1969, the first human beings",
    "SELECT name, price FROM products WHERE",
    "My grandmother always told me that",
    "Le chat est assis sur",
    "2 + 2 = 4, 3 + 3 = 6, 4 + 4 =",
)
