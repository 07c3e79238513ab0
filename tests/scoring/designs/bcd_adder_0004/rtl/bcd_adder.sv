module bcd_adder (
    input  [3:0] a,
    input  [3:0] b,
    input        cin,
    output [3:0] sum,
    output       cout
);
    wire [4:0] plain = a + b + cin;

    assign cout = plain > 9;
    assign sum = cout ? plain + 6 : plain;
endmodule
