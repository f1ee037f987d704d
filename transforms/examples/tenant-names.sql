-- Each product with the name of its tenant and what it has in stock: one row for each id in $1.
select p.id, t.name as tenant_name, coalesce(sum(s.amount), 0)::int as in_stock
from product p
join tenant t on t.id = p.tenant_id
left join stock s on s.product_id = p.id
where p.id = any($1)
group by p.id, t.name
